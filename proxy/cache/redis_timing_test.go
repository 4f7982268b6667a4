package cache

import (
	"fmt"
	"testing"
	"time"

	"headgate/proxy/cache/redistest"
)

func BenchmarkRedisHit(b *testing.B) {
	server := redistest.Start(b)
	r, err := OpenRedis(RedisConfig{URL: server.URL()})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	refs := make([]Ref, 1000)
	for i := range refs {
		key := fmt.Sprint("user:", i)
		refs[i], _ = r.Ref(key, time.Hour, false)
		r.Set(b.Context(), key, "1", time.Hour)
		r.Load(&refs[i])
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if v, err := r.Load(&refs[i%len(refs)]); v != "1" || err != nil {
			b.Fatal(v, err)
		}
	}
}
