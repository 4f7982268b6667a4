package route

import (
	"errors"
	"fmt"
	"testing"

	"headgate/proxy/authz"
)

var table = Default("/cwms-data")

// ask returns the question a request makes, or the kind of its refusal.
func ask(t *testing.T, table *Table, method, target, contentType, body string) string {
	t.Helper()
	var m Match
	tgt, err := ParseTarget([]byte(target))
	if err == nil {
		err = table.Match(&m, []byte(method), tgt)
	}
	if err == nil && m.NeedsBody {
		err = table.Body(&m, []byte(contentType), nil, []byte(body))
	}
	if err != nil {
		for _, kind := range []error{authz.ErrMalformed, authz.ErrMethodNotAllowed, authz.ErrUnsupportedBody} {
			if errors.Is(err, kind) {
				return kind.Error()
			}
		}
		t.Fatalf("%s %s: error without a kind: %v", method, target, err)
	}
	return fmt.Sprintf("%s %s %s", m.Resource, m.Action, m.Context.AppendJSON(nil))
}

func TestSmoke(t *testing.T) {
	for _, target := range []string{"/cwms-data/timeseries?office=swt&name=A.Flow.Inst.1Hour.0.x", "/cwms-data", "/cwms-data/catalog/TIMESERIES?office=SPK&page=U1BLL0ZvbHNvbS4uLnx8U1BLfHwuKg%3D%3D"} {
		t.Log(ask(t, table, "GET", target, "", ""))
	}
	t.Log(ask(t, table, "POST", "/cwms-data/timeseries", "application/json;version=2", `{"name":"A.Flow.Inst.1Hour.0.x","Office\u002did":"spk","values":[[1,2.5e3,null]]}`))
	t.Log(ask(t, table, "POST", "/cwms-data/timeseries", "application/xml;version=2", `<timeseries><office-id>SPK</office-id><name>A.Elev.x</name></timeseries>`))
}
