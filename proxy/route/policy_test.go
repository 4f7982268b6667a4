package route

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// The resource names of the table and those that policy knows are one list.
func TestPolicyKnowsEveryResource(t *testing.T) {
	b, err := os.ReadFile("../../opa/policy/cwms/resources/data.json")
	if err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Routes []string `json:"routes"`
	}
	if err := json.Unmarshal(b, &policy); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, r := range table.routes {
		names[r.resource] = true
	}
	if want := sortedNames(names); !slices.Equal(policy.Routes, want) {
		list, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("opa/policy/cwms/resources/data.json lists the routes\n%q\nand the table has\n%s", policy.Routes, list)
	}
}
