package cache

import (
	"fmt"
	"testing"
	"time"

	"headgate/proxy/cache/redistest"
)

func BenchmarkReadingStands(b *testing.B) {
	r, err := OpenRedis(RedisConfig{URL: redistest.Start(b).URL()})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	readings := make([]Reading, 1000)
	for i := range readings {
		if readings[i], err = r.Load(fmt.Sprint("user:", i), time.Hour, false); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if !readings[i%len(readings)].Stands() {
			b.Fatal("it fell")
		}
	}
}
