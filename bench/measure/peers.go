package measure

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/template"

	"headgate/bench/stack"
)

// peer is a proxy to compare with. All of them forward to the same stand-in and
// keep their connections; none of them writes a record of what passed, which this
// proxy does in the same slices.
type peer struct {
	name   string
	binary string // looked for on PATH; empty: built from pkg
	pkg    string
	config string // template of a file that is given to args
	args   func(config, listen, api string) []string
	ready  string // path that answers 200 to anybody
}

var peers = []peer{
	{name: "bare hop", pkg: "./bench/bare", ready: "/cwms-data/offices", args: func(_, listen, api string) []string {
		return []string{"-listen", listen, "-upstream", api}
	}},
	{name: "HAProxy, plain", binary: "haproxy", ready: "/cwms-data/offices", config: haproxyConfig, args: func(config, _, _ string) []string {
		return []string{"-db", "-f", config}
	}},
	{name: "nginx, plain", binary: "nginx", config: nginxConfig, ready: "/ready", args: nginxArgs},
	{name: "nginx, auth_request cached", binary: "nginx", config: nginxConfig, ready: "/ready", args: nginxArgs},
}

func nginxArgs(config, _, _ string) []string {
	return []string{"-c", config, "-p", filepath.Dir(config), "-e", filepath.Join(filepath.Dir(config), "error.log")}
}

const haproxyConfig = `
global
  nbthread {{.Cores}}
  maxconn 4096
defaults
  mode http
  http-reuse always
  timeout client 60s
  timeout server 60s
  timeout connect 5s
frontend front
  bind {{.Listen}}
  default_backend api
backend api
  server api {{.API}}
`

// The cached answer is the API's own word on whether the credential is good: what
// it is does not matter for the cost of finding it in the cache.
const nginxConfig = `
daemon off;
worker_processes {{.Cores}};
{{if .Root}}user root;{{end}}
pid {{.Dir}}/nginx.pid;
events { worker_connections 4096; }
http {
  access_log off;
  keepalive_requests 1000000000;
  client_body_temp_path {{.Dir}}/body;
  proxy_temp_path {{.Dir}}/proxy;
  fastcgi_temp_path {{.Dir}}/fastcgi;
  uwsgi_temp_path {{.Dir}}/uwsgi;
  scgi_temp_path {{.Dir}}/scgi;
  proxy_cache_path {{.Dir}}/cache keys_zone=auth:10m;
  upstream api { server {{.API}}; keepalive 256; keepalive_requests 1000000000; }
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  proxy_set_header Host $http_host;
  server {
    listen {{.Listen}};
    location / {
      {{if .Auth}}auth_request /auth;{{end}}
      proxy_pass http://api;
    }
    location = /ready { return 200; }
    location = /auth {
      internal;
      proxy_pass http://api/cwms-data/user/profile;
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
      proxy_cache auth;
      proxy_cache_key $http_authorization;
      proxy_cache_valid 200 5m;
      proxy_ignore_headers Set-Cookie Cache-Control Expires Vary;
    }
  }
}
`

// startPeers starts what is installed, and tells what is not.
func (b *bench) startPeers(ctx context.Context, which []peer) (started []*subject, missing []string, stop func(), err error) {
	var running []*stack.Beside
	stop = func() {
		for _, p := range running {
			_ = p.Stop() // nothing of a peer is worth keeping
		}
	}
	for _, p := range which {
		path, err := p.path(ctx, b.st)
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s is not installed.", strings.ToUpper(p.name[:1])+p.name[1:]))
			continue
		}
		child, err := b.startPeer(ctx, p, path)
		if err != nil {
			stop()
			return nil, nil, func() {}, fmt.Errorf("cannot start %s: %w", p.name, err)
		}
		running = append(running, child)
		started = append(started, &subject{name: p.name, url: child.URL, process: child.Child})
	}
	return started, missing, stop, nil
}

func (p peer) path(ctx context.Context, st *stack.Stack) (string, error) {
	if p.binary == "" {
		return st.Build(ctx, filepath.Base(p.pkg), p.pkg)
	}
	return exec.LookPath(p.binary)
}

func (b *bench) startPeer(ctx context.Context, p peer, path string) (*stack.Beside, error) {
	listen, err := stack.FreeAddress()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.st.Dir(), strings.Map(letters, p.name))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	api := strings.TrimPrefix(b.st.API, "http://")
	config := filepath.Join(dir, "config")
	var text bytes.Buffer
	err = template.Must(template.New("").Parse(p.config)).Execute(&text, map[string]any{
		"Cores": runtime.NumCPU(), "Root": os.Getuid() == 0, "Dir": dir, "Listen": listen, "API": api, "Auth": strings.Contains(p.name, "auth_request"),
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, text.Bytes(), 0o644); err != nil {
		return nil, err
	}
	return b.st.Spawn(ctx, filepath.Base(dir), path, "http://"+listen+p.ready, p.args(config, listen, api)...)
}

func letters(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return -1
}

// direct is the API itself, as a subject.
func (b *bench) direct() *subject {
	return &subject{name: "direct", url: b.st.API}
}
