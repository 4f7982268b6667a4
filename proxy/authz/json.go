package authz

import (
	"unicode/utf16"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string of ASCII characters only, so that the
// same bytes can stand in a document and in a header. s must be valid UTF-8:
// whoever takes bytes from outside refuses anything else, since two invalid
// strings would come out alike.
func AppendString(b []byte, s string) []byte {
	b = append(b, '"')
	plain := 0
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			b = append(b, s[plain:i]...)
			if c == '"' || c == '\\' {
				b = append(b, '\\', c)
			} else {
				b = appendEscape(b, uint16(c))
			}
			i++
			plain = i
			continue
		}
		b = append(b, s[plain:i]...)
		r, n := utf8.DecodeRuneInString(s[i:])
		b = appendRune(b, r)
		i += n
		plain = i
	}
	b = append(b, s[plain:]...)
	return append(b, '"')
}

// AppendStrings appends a JSON array of strings.
func AppendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		b = comma(b, i)
		b = AppendString(b, s)
	}
	return append(b, ']')
}

// AppendASCII appends valid JSON with every character beyond ASCII escaped; in
// valid JSON such characters stand only in strings.
func AppendASCII(b, raw []byte) []byte {
	for i := 0; i < len(raw); {
		if c := raw[i]; c < 0x7f {
			b = append(b, c)
			i++
			continue
		}
		r, n := utf8.DecodeRune(raw[i:])
		b = appendRune(b, r)
		i += n
	}
	return b
}

func appendRune(b []byte, r rune) []byte {
	if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
		return appendEscape(appendEscape(b, uint16(hi)), uint16(lo))
	}
	return appendEscape(b, uint16(r))
}

func appendEscape(b []byte, c uint16) []byte {
	return append(b, '\\', 'u', hexDigits[c>>12], hexDigits[c>>8&15], hexDigits[c>>4&15], hexDigits[c&15])
}

func comma(b []byte, i int) []byte {
	if i > 0 {
		return append(b, ',')
	}
	return b
}
