package authz

import (
	"testing"
	"time"
)

// A time is written as the layout of package time would have it.
func TestAppendTime(t *testing.T) {
	zone := time.FixedZone("east", 5*3600+1800)
	for _, at := range []time.Time{
		{}, time.Unix(0, 0), time.Unix(1<<31, 999_999_999), time.Date(2024, 2, 29, 23, 59, 59, 1_000, time.UTC),
		time.Date(2026, 12, 31, 23, 0, 0, 120_000_000, zone), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
	} {
		for digits, layout := range map[int]string{
			3: "2006-01-02T15:04:05.000Z", 6: "2006-01-02T15:04:05.000000Z", 9: "2006-01-02T15:04:05.000000000Z",
		} {
			if got, want := string(AppendTime(nil, at, digits)), at.UTC().Format(layout); got != want {
				t.Errorf("%v is %s, want %s", at, got, want)
			}
		}
	}
}

func BenchmarkAppendTime(b *testing.B) {
	now, buf := time.Now(), make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		AppendTime(buf, now, 6)
	}
}

// The way it is not done.
func BenchmarkAppendFormat(b *testing.B) {
	now, buf := time.Now(), make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		now.UTC().AppendFormat(buf, "2006-01-02T15:04:05.000000Z")
	}
}
