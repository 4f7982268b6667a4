package route

import (
	"bytes"
	"fmt"
	"testing"
)

// The request of a client that reads a time series: the common path.
const commonRead = "/cwms-data/timeseries?office=SPK&name=Folsom.Elev.Inst.1Hour.0.Ccp-Rev&unit=EN&begin=2026-01-01T00%3A00%3A00%2B00%3A00&end=2026-01-15T00%3A00%3A00%2B00%3A00&page-size=300000&trim=True"

// seriesBody is a JSON time series of about the given size, as clients post it.
func seriesBody(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"name":"KEYS.Elev.Inst.1Hour.0.Ccp-Rev","office-id":"SWT","units":"ft","version-date":null,"values":[`)
	for i := 0; b.Len() < size; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `["2026-01-%02dT%02d:00:00+00:00",%d.%d,0]`, i/24%28+1, i%24, 700+i%50, i%10)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

func BenchmarkMatch(b *testing.B) {
	for _, c := range []struct{ name, target string }{
		{"read", commonRead},
		{"item", "/cwms-data/levels/Folsom.Elev.Inst.0.Bottom%20of%20Flood%20Control/timeseries?office=SPK&unit=ft"},
		{"cursor", "/cwms-data/catalog/TIMESERIES?office=SPK&page=U1BLL0ZvbHNvbS4uLnx8U1BLfHwuKg%3D%3D"},
		{"unknown", "/cwms-data/no/such/route?office=SPK"},
	} {
		b.Run(c.name, func(b *testing.B) {
			var m Match
			raw, get := []byte(c.target), []byte("GET")
			b.ReportAllocs()
			for b.Loop() {
				target, err := ParseTarget(raw)
				if err != nil {
					b.Fatal(err)
				}
				if err := table.Match(&m, get, target); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkBody(b *testing.B) {
	blob := append(append([]byte(`{"office-id":"SWT","id":"x","value":"`), bytes.Repeat([]byte("QUJD"), 256<<10)...), `"}`...)
	series := seriesBody(60 << 10)
	for _, c := range []struct {
		name, target, contentType string
		body                      []byte
	}{
		{"json series 60KB", "/cwms-data/timeseries", "application/json;version=2", series},
		{"json blob 1MB", "/cwms-data/blobs", "application/json", blob},
		{"json any depth 60KB", "/cwms-data/ratings", "application/json", series},
		{"xml series", "/cwms-data/timeseries", "application/xml;version=2", seriesXML(60 << 10)},
	} {
		b.Run(c.name, func(b *testing.B) {
			var m Match
			target, err := ParseTarget([]byte(c.target))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(c.body)))
			for b.Loop() {
				if err := table.Match(&m, []byte("POST"), target); err != nil {
					b.Fatal(err)
				}
				if err := table.Body(&m, []byte(c.contentType), nil, c.body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func seriesXML(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?><timeseries><office-id>SWT</office-id><name>KEYS.Elev.Inst.1Hour.0.Ccp-Rev</name><values>`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `<record><date-time>%d</date-time><value>%d.%d</value><quality-code>0</quality-code></record>`, 1767225600000+i*3600000, 700+i%50, i%10)
	}
	b.WriteString(`</values></timeseries>`)
	return b.Bytes()
}
