package standin

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// routeInfo is what the stand-in knows of a route by its first segment.
type routeInfo struct {
	members bool   // every method needs a user
	cache   string // Cache-Control of its reads
}

const (
	fiveMinutes = "max-age=300"
	oneHour     = "max-age=3600"
	oneDay      = "max-age=86400"
)

var routes = map[string]routeInfo{
	"": {}, "swagger-docs": {}, "swagger-ui.html": {}, "version": {},
	"timeseries": {cache: fiveMinutes}, "catalog": {cache: fiveMinutes},
	"locations": {cache: fiveMinutes}, "location": {cache: fiveMinutes}, "entity": {cache: fiveMinutes},
	"levels": {cache: fiveMinutes}, "level-refs": {cache: fiveMinutes}, "specified-levels": {cache: fiveMinutes},
	"ratings": {cache: fiveMinutes}, "measurements": {cache: fiveMinutes}, "published": {cache: fiveMinutes},
	"basins": {cache: oneHour}, "streams": {cache: oneHour}, "stream-locations": {cache: oneHour},
	"stream-reaches": {cache: oneHour}, "blobs": {cache: fiveMinutes}, "clobs": {cache: fiveMinutes},
	"pools": {cache: fiveMinutes}, "projects": {cache: fiveMinutes}, "rss": {cache: fiveMinutes},
	"forecast-spec": {cache: fiveMinutes}, "forecast-instance": {cache: fiveMinutes},
	"lookup-types": {cache: oneHour}, "standard-text-id": {cache: oneHour},
	"offices": {cache: oneDay}, "units": {cache: oneDay}, "parameters": {cache: oneDay},
	"timezones": {cache: oneDay}, "states": {cache: oneDay}, "counties": {cache: oneDay},
	"project-locks": {members: true}, "project-lock-rights": {members: true}, "properties": {members: true},
	"user": {members: true}, "users": {members: true}, "roles": {members: true}, "auth": {members: true},
}

var offices = [][2]string{
	{"HQ", "Headquarters"}, {"SWT", "Tulsa District"}, {"SPK", "Sacramento District"}, {"SPL", "Los Angeles District"},
	{"SWD", "Southwestern Division"}, {"SPD", "South Pacific Division"}, {"MVP", "St. Paul District"},
	{"NWDM", "Missouri River Region"}, {"LRH", "Huntington District"}, {"SPA", "Albuquerque District"},
}

func (c *call) route() {
	parts := c.parts
	first := ""
	if len(parts) > 0 {
		first = parts[0]
	}
	if first == "v2" && len(parts) > 1 {
		first, parts = parts[1], parts[1:]
	}
	info, ok := routes[first]
	switch {
	case !ok:
		c.fail(fasthttp.StatusNotFound, "Not Found")
		return
	case c.method == fasthttp.MethodHead:
		// The API's router answers HEAD itself, before roles are looked at.
		c.answer(fasthttp.StatusOK, "text/plain", nil)
		return
	case info.members && c.user == nil:
		c.fail(fasthttp.StatusUnauthorized, "Invalid User")
		return
	}
	switch c.method {
	case fasthttp.MethodGet:
		if info.cache != "" {
			c.Response.Header.Set("Cache-Control", info.cache)
		}
		c.read(first, parts)
	case fasthttp.MethodPost, fasthttp.MethodPatch, fasthttp.MethodPut, fasthttp.MethodDelete:
		c.write(first, parts)
	default:
		c.fail(fasthttp.StatusMethodNotAllowed, "Method Not Allowed")
	}
}

func (c *call) read(first string, parts []string) {
	for _, part := range parts[min(1, len(parts)):] {
		if strings.HasPrefix(part, "Missing") {
			c.fail(fasthttp.StatusNotFound, "Not Found")
			return
		}
	}
	switch first {
	case "":
		c.answer(fasthttp.StatusOK, "text/html", []byte("<!DOCTYPE html><html><head><title>CWMS Data API</title></head><body>Stand-in of the CWMS Data API</body></html>"))
	case "swagger-docs":
		c.validated("application/json", []byte(`{"openapi":"3.0.1","info":{"title":"CWMS Data API","version":"stand-in"},"paths":{},"components":{"securitySchemes":{"OpenIDConnect":{"type":"openIdConnect","openIdConnectUrl":`+
			quote(c.srv.opts.IssuerURL+"/.well-known/openid-configuration")+`}}}}`))
	case "user":
		c.readUser(parts)
	case "users":
		c.readUsers(parts)
	case "timeseries":
		c.readTimeseries(parts)
	case "offices":
		c.readOffices(parts)
	case "blobs":
		c.readBlob(parts)
	default:
		c.validated(c.json(), []byte(`{`+quote(strings.Join(parts, "/"))+`:[]}`))
	}
}

// write accepts every write of a user and forgets it. POST to the rating
// calculations is a read that guests may make.
func (c *call) write(first string, parts []string) {
	if first == "ratings" && len(parts) > 1 && (strings.HasPrefix(parts[1], "rate-") || strings.HasPrefix(parts[1], "reverse-rate-")) {
		c.answer(fasthttp.StatusOK, "application/json", []byte(`{"output-unit":"ac-ft","values":[[1000.5]]}`))
		return
	}
	if c.user == nil {
		c.fail(fasthttp.StatusUnauthorized, "Invalid User")
		return
	}
	switch c.method {
	case fasthttp.MethodPost:
		if first == "timeseries" && len(parts) == 1 {
			c.answer(fasthttp.StatusOK, "", nil)
			return
		}
		c.answer(fasthttp.StatusCreated, "application/json", []byte(`{"message":"Created","identifier":`+quote(c.path)+`}`))
	case fasthttp.MethodDelete:
		c.answer(fasthttp.StatusNoContent, "", nil)
	default:
		c.answer(fasthttp.StatusOK, "", nil)
	}
}

func (c *call) readUser(parts []string) {
	if c.path != "user/profile" {
		c.validated(c.json(), []byte(`{"users":[]}`))
		return
	}
	time.Sleep(c.srv.opts.ProfileDelay)
	if c.kind == apiKey && !c.user.is("CWMS Users") { // other credentials have the role cac_auth
		c.fail(fasthttp.StatusForbidden, "Missing one of the following roles {CWMS Users,cac_auth}")
		return
	}
	doc := c.user.profileFor(c.kind)
	c.document("application/json", doc)
}

func (c *call) readUsers(parts []string) {
	time.Sleep(c.srv.opts.ProfileDelay)
	if !c.user.is("CWMS User Admins") {
		c.fail(fasthttp.StatusForbidden, "Missing roles {CWMS User Admins}")
		return
	}
	if len(parts) != 2 {
		c.validated(c.json(), []byte(`{"users":[]}`))
		return
	}
	other := c.srv.people.named(parts[1])
	if other == nil {
		c.fail(fasthttp.StatusNotFound, "Not Found")
		return
	}
	c.document("application/json", other.profileFor(apiKey))
}

func (c *call) readOffices(parts []string) {
	if len(parts) > 1 {
		for _, o := range offices {
			if strings.EqualFold(o[0], parts[1]) {
				c.validated(c.json(), officeJSON(o))
				return
			}
		}
		c.fail(fasthttp.StatusNotFound, "Not Found")
		return
	}
	list := []byte{'['}
	for i, o := range offices {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, officeJSON(o)...)
	}
	list = append(list, ']')
	if !c.version2() {
		list = []byte(`{"offices":{"offices":` + string(list) + `}}`)
	}
	c.validated(c.json(), list)
}

func officeJSON(o [2]string) []byte {
	return []byte(`{"name":` + quote(o[0]) + `,"long-name":` + quote(o[1]) + `,"type":"DIS","reports-to":"HQ"}`)
}

// The series that every name has: hourly values, one page of 1.6 KB with its
// envelope.
const seriesLength = 40

var (
	seriesStart  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	seriesValues = func() (rows [seriesLength][]byte) {
		for i := range rows {
			at := seriesStart.Add(time.Duration(i) * time.Hour).UnixMilli()
			rows[i] = fmt.Appendf(nil, "[%d,%.3f,0]", at, 410+float64(i%17)/8)
		}
		return rows
	}()
)

func (c *call) readTimeseries(parts []string) {
	if len(parts) == 2 && parts[1] != "recent" && parts[1] != "group" && parts[1] != "category" && parts[1] != "text" {
		c.fail(fasthttp.StatusNotImplemented, "Not Implemented")
		return
	}
	if len(parts) > 1 {
		c.validated(c.json(), []byte(`[]`))
		return
	}
	if bytes.Contains(c.accept, []byte("text/event-stream")) {
		c.stream()
		return
	}
	doc, err := c.srv.series.get(c)
	if err != nil {
		c.fail(err.status, err.message)
		return
	}
	c.document(doc.mediaType, &doc.document)
}

// rendered keeps the answers that were rendered last, since load asks for the
// same few again and again.
type rendered struct {
	mu      sync.RWMutex
	answers map[string]*series // by query and Accept
}

type series struct {
	document
	mediaType string
}

// refusal is an error answer.
type refusal struct {
	status  int
	message string
}

const renderedMax = 4096

func (r *rendered) get(c *call) (*series, *refusal) {
	var room [512]byte
	key := append(append(append(room[:0], c.query...), 0), c.accept...)
	r.mu.RLock()
	answer := r.answers[string(key)]
	r.mu.RUnlock()
	if answer != nil {
		return answer, nil
	}
	answer, refused := c.renderSeries()
	if refused != nil {
		return nil, refused
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answers == nil || len(r.answers) >= renderedMax {
		r.answers = make(map[string]*series)
	}
	r.answers[string(key)] = answer
	return answer, nil
}

func (c *call) renderSeries() (*series, *refusal) {
	name, office := c.param("name"), c.param("office")
	switch {
	case name == "":
		return nil, &refusal{fasthttp.StatusBadRequest, "Required parameter 'name' was not given"}
	case office == "" && c.version2():
		return nil, &refusal{fasthttp.StatusBadRequest, "Required parameter 'office' was not given"}
	case strings.HasPrefix(name, "Missing"):
		return nil, &refusal{fasthttp.StatusNotFound, "Not Found"}
	}
	first, size := 0, seriesLength
	if n, err := strconv.Atoi(c.param("page-size")); err == nil && n > 0 {
		size = n
	}
	if page := c.param("page"); page != "" {
		var ok bool
		if first, size, ok = readCursor(page); !ok {
			return nil, &refusal{fasthttp.StatusBadRequest, "Invalid page cursor"}
		}
	}
	end := first + min(size, seriesLength-first)
	answer := &series{mediaType: c.json()}
	if c.wants("text/csv") || c.param("format") == "csv" {
		answer.mediaType = "text/csv"
		answer.body = fmt.Appendf(nil, "#%s,%s\n", name, office)
		for _, row := range seriesValues[first:end] {
			answer.body = fmt.Appendf(answer.body, "%s\n", row[1:len(row)-1])
		}
	} else {
		next := ""
		if end < seriesLength {
			next = `,"next-page":"` + cursor(end, size) + `"`
		}
		answer.body = fmt.Appendf(nil, `{"begin":"2026-01-01T00:00:00+0000[UTC]","end":"2026-01-02T15:00:00+0000[UTC]","interval":"PT1H","interval-offset":0,`+
			`"name":%s,"office-id":%s,"page":"%s"%s,"page-size":%d,"time-zone":"US/Central","total":%d,"units":"ft",`+
			`"value-columns":[{"name":"date-time","ordinal":1,"datatype":"java.sql.Timestamp"},{"name":"value","ordinal":2,"datatype":"java.lang.Double"},{"name":"quality-code","ordinal":3,"datatype":"int"}],`+
			`"version-date":null,"values":[%s]}`,
			quote(name), quote(office), cursor(first, size), next, size, seriesLength, bytes.Join(seriesValues[first:end], []byte(",")))
	}
	answer.etag = etagOf(answer.body)
	return answer, nil
}

// cursor is the API's layout: the first time, the total and the page size,
// joined by || and in standard base64.
func cursor(first, size int) string {
	at := seriesStart.Add(time.Duration(first) * time.Hour).UnixMilli()
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%d||%d||%d", at, seriesLength, size))
}

func readCursor(page string) (first, size int, ok bool) {
	raw, err := base64.StdEncoding.DecodeString(page)
	if err != nil {
		return 0, 0, false
	}
	fields := strings.Split(string(raw), "||")
	if len(fields) != 3 {
		return 0, 0, false
	}
	at, err1 := strconv.ParseInt(fields[0], 10, 64)
	size, err2 := strconv.Atoi(fields[2])
	hour := time.UnixMilli(at).Sub(seriesStart) / time.Hour
	return int(hour), size, err1 == nil && err2 == nil && size > 0 && hour >= 0 && hour < seriesLength
}

// stream sends server-sent events: ?events=N of them (3), one every
// ?interval_ms=M (0), each flushed by itself.
func (c *call) stream() {
	events, err := strconv.Atoi(c.param("events"))
	if err != nil {
		events = 3
	}
	gap, _ := strconv.Atoi(c.param("interval_ms"))
	c.Response.Header.Set("Cache-Control", "no-cache")
	c.Response.Header.SetContentType("text/event-stream")
	c.SetBodyStreamWriter(func(w *bufio.Writer) {
		for i := range events {
			if i > 0 {
				time.Sleep(time.Duration(gap) * time.Millisecond)
			}
			fmt.Fprintf(w, "id: %d\ndata: {\"value\":%d}\n\n", i, i)
			if w.Flush() != nil {
				return // the client left
			}
		}
	})
}

// readBlob sends ?bytes=N bytes (1024), with ?chunked=true without a length.
// Byte n of a blob is 'a' + n%26, so that any part can be checked.
func (c *call) readBlob(parts []string) {
	if len(parts) < 2 {
		c.validated(c.json(), []byte(`{"blobs":[],"page-size":20}`))
		return
	}
	n, err := strconv.ParseInt(c.param("bytes"), 10, 64)
	if err != nil || n < 0 {
		n = 1024
	}
	if c.matches(fmt.Sprintf(`"%d"`, n)) {
		return
	}
	c.Response.Header.SetContentType("application/octet-stream")
	if c.param("chunked") == "true" {
		c.Response.SetBodyStream(alphabet(0, n), -1)
		return
	}
	c.Response.Header.Set("Accept-Ranges", "bytes")
	if c.byteRange != nil {
		from, to, err := fasthttp.ParseByteRange(c.byteRange, int(n))
		if err != nil {
			c.Response.Header.Set("Content-Range", fmt.Sprintf("bytes */%d", n))
			c.fail(fasthttp.StatusRequestedRangeNotSatisfiable, "Range Not Satisfiable")
			return
		}
		c.Response.SetStatusCode(fasthttp.StatusPartialContent)
		c.Response.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, n))
		c.Response.SetBodyStream(alphabet(int64(from), int64(to)+1), to-from+1)
		return
	}
	c.Response.SetBodyStream(alphabet(0, n), int(n))
}

// letters yields the bytes [at, end) of a blob.
type letters struct{ at, end int64 }

func alphabet(from, to int64) io.Reader { return &letters{at: from, end: to} }

func (l *letters) Read(b []byte) (int, error) {
	if l.at >= l.end {
		return 0, io.EOF
	}
	n := min(int64(len(b)), l.end-l.at)
	for i := range n {
		b[i] = 'a' + byte((l.at+i)%26)
	}
	l.at += n
	return int(n), nil
}

func (c *call) wants(mediaType string) bool { return bytes.Contains(c.accept, []byte(mediaType)) }

func (c *call) version2() bool { return c.wants("version=2") }

// json is the media type of a JSON answer: the version that was asked for.
func (c *call) json() string {
	if c.version2() {
		return "application/json;version=2"
	}
	return "application/json"
}

// validated answers with a validator, or 304.
func (c *call) validated(mediaType string, body []byte) {
	c.document(mediaType, &document{body: body, etag: etagOf(body)})
}

func (c *call) document(mediaType string, d *document) {
	if !c.matches(d.etag) {
		c.answer(fasthttp.StatusOK, mediaType, d.body)
	}
}

// matches sets the validator and answers 304 if the client has that version.
func (c *call) matches(etag string) bool {
	c.Response.Header.Set("ETag", etag)
	if c.ifNoneMatch == nil || !bytes.Contains(c.ifNoneMatch, []byte(etag)) {
		return false
	}
	c.Response.SetStatusCode(fasthttp.StatusNotModified)
	return true
}

func etagOf(body []byte) string {
	h := fnv.New64a()
	_, _ = h.Write(body) // a hash does not fail
	return `"` + strconv.FormatUint(h.Sum64(), 16) + `"`
}

func quote(s string) string {
	b, _ := json.Marshal(s) // a string does not fail
	return string(b)
}
