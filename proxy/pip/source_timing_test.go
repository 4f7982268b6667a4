package pip

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"headgate/proxy/authz"
	"headgate/proxy/cache/redistest"
)

const benchUsers = 1000

// manyUsers are users whose contexts are warm.
func manyUsers(b *testing.B, s *Source, a *api) []*authz.Principal {
	list := make([]*authz.Principal, benchUsers)
	for i := range list {
		name := fmt.Sprintf("USER%04d", i)
		a.set("Bearer "+name, fmt.Sprintf(`{"user-name":%q,"principal":"https://issuer::%s","email":"%[2]s@example.test",
			"roles":{"SWT":["CWMS Users","All Users","TS ID Creator"],"HQ":["water_manager"]}}`, name, name))
		list[i] = token(name, name)
		if _, err := s.Subject(context.Background(), list[i]); err != nil {
			b.Fatal(err)
		}
	}
	return list
}

func benchmarkWarm(b *testing.B, url string) {
	a := newAPI(b)
	s := replica(b, a, url)
	users := manyUsers(b, s, a)
	ctx := context.Background()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := s.Subject(ctx, users[i%benchUsers]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSubjectWarm(b *testing.B)        { benchmarkWarm(b, redistest.Start(b).URL()) }
func BenchmarkSubjectWarmProcess(b *testing.B) { benchmarkWarm(b, "") }

func BenchmarkSubjectWarmParallel(b *testing.B) {
	a := newAPI(b)
	s := replica(b, a, redistest.Start(b).URL())
	users := manyUsers(b, s, a)
	ctx := context.Background()
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			s.Subject(ctx, users[i%benchUsers])
		}
	})
}

// BenchmarkSubjectRefreshing compares the slowest warm requests with and without
// refreshes going on: a hundred a second, thirty times what 1,000 active users
// cause by default.
func BenchmarkSubjectRefreshing(b *testing.B) {
	for name, after := range map[string]time.Duration{"quiet": time.Minute, "refreshing": time.Second} {
		b.Run(name, func(b *testing.B) {
			a := newAPI(b)
			s := replica(b, a, redistest.Start(b).URL(), func(c *Config) { c.RefreshAfter = after })
			users := manyUsers(b, s, a)[:100]
			took := make([]time.Duration, 0, 1<<23)
			before := refreshedOK.Get()
			for i := 0; b.Loop(); i++ {
				start := time.Now()
				s.Subject(context.Background(), users[i%len(users)])
				if len(took) < cap(took) {
					took = append(took, time.Since(start))
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
			b.ReportMetric(float64(refreshedOK.Get()-before)/b.Elapsed().Seconds(), "refreshes/s")
		})
	}
}

func BenchmarkSubjectCold(b *testing.B) {
	a := newAPI(b)
	server := redistest.Start(b)
	s := replica(b, a, server.URL())
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprint("U", i)
		a.set("Bearer "+name, profileOf(name, "SPK", "r"))
		if _, err := s.Subject(context.Background(), token(name, name)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMemory reports the bytes of heap for one cached user, what rueidis
// holds included.
func BenchmarkMemory(b *testing.B) {
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	a := newAPI(b)
	s := replica(b, a, redistest.Start(b).URL())
	for b.Loop() {
		before := heap()
		list := manyUsers(b, s, a)
		b.ReportMetric((heap()-before)/benchUsers, "B/user")
		runtime.KeepAlive(list)
	}
}
