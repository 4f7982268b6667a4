package authz

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkQuestion is what a question costs to write and to find, by the number
// of roles the user has.
func BenchmarkQuestion(b *testing.B) {
	for _, roles := range []int{1, 20, 500} {
		b.Run(fmt.Sprint(roles), func(b *testing.B) {
			u := User{ID: "M5HECTEST", Username: "M5HECTEST", Offices: []string{"SWT"}, RolesByOffice: map[string][]string{}}
			for i := range roles {
				u.Roles = append(u.Roles, fmt.Sprintf("role %03d", i))
			}
			in := Input{Subject: NewSubject(&Principal{Method: JWT}, u, time.Time{}), Resource: "timeseries", Action: "read", Context: Context{
				Method: "GET", Route: "/timeseries", Offices: []string{"SWT"}, Scope: ScopeOne, Attributes: []Pair{{"parameter", "Elev"}},
			}}
			buf := make([]byte, 0, 16<<10)
			b.ReportAllocs()
			for b.Loop() {
				q := in.Question(buf)
				if key := q.Key(); key[0] == key[1] && key[1] == key[2] && key[2] == key[3] && key[3] == key[4] {
					b.Fatal("no digest")
				}
			}
		})
	}
}
