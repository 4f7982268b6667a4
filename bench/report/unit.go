package report

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Unit says what a number is, and so how it is written.
type Unit string

const (
	Seconds Unit = "s"     // a latency
	CPU     Unit = "cpu s" // seconds of processor time
	Rate    Unit = "req/s"
	Share   Unit = "share" // 0 to 1, written in per cent
	Bytes   Unit = "B"
	Ratio   Unit = "x"
	Cores   Unit = "cores"
	Count   Unit = "count"
	Plain   Unit = "" // text
)

// Format writes a value with its unit.
func (u Unit) Format(v Value) string {
	if v.Text != "" {
		return v.Text
	}
	n := v.Number
	switch u {
	case Seconds:
		return duration(n)
	case CPU:
		return digits(n) + " s"
	case Rate:
		return grouped(n) + " /s"
	case Share:
		return percent(n)
	case Bytes:
		return size(n)
	case Ratio:
		return strconv.FormatFloat(n, 'f', 2, 64) + " ×"
	case Cores:
		return strconv.FormatFloat(n, 'f', 2, 64)
	}
	return grouped(n)
}

// duration has three digits at most: more would be noise.
func duration(s float64) string {
	d := time.Duration(math.Round(s * 1e9))
	switch {
	case s < 0:
		return "-" + duration(-s)
	case d == 0:
		return "0"
	case d < time.Microsecond:
		return digits(float64(d)) + " ns"
	case d < time.Millisecond:
		return digits(float64(d)/1e3) + " µs"
	case d < time.Second:
		return digits(float64(d)/1e6) + " ms"
	}
	return digits(s) + " s"
}

func digits(n float64) string {
	switch a := math.Abs(n); {
	case a == 0:
		return "0"
	case a < 10:
		return strconv.FormatFloat(n, 'f', 2, 64)
	case a < 100:
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	return strconv.FormatFloat(n, 'f', 0, 64)
}

func percent(n float64) string {
	switch p := n * 100; {
	case p == 0 || p == 100:
		return digits(p) + " %"
	case p > 99 && p < 100: // never rounded up to all of them
		return strconv.FormatFloat(math.Floor(p*100)/100, 'f', 2, 64) + " %"
	default:
		return digits(p) + " %"
	}
}

func size(n float64) string {
	for _, u := range []struct {
		bytes float64
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.bytes {
			return digits(n/u.bytes) + " " + u.name
		}
	}
	return grouped(n) + " B"
}

// grouped writes thousands apart: 12,345.
func grouped(n float64) string {
	if math.Abs(n) < 100 && n != math.Trunc(n) {
		return digits(n)
	}
	s := strconv.FormatFloat(math.Abs(n), 'f', 0, 64)
	var b strings.Builder
	if n < 0 {
		b.WriteByte('-')
	}
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}
