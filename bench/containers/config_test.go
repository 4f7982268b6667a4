package containers

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// service is what Compose makes of a service of the file.
type service struct {
	User        string
	ReadOnly    bool     `json:"read_only"`
	CapDrop     []string `json:"cap_drop"`
	SecurityOpt []string `json:"security_opt"`
	Privileged  bool
	Restart     string
	Grace       string `json:"stop_grace_period"`
	Environment map[string]*string
	Networks    map[string]any
	Ports       []struct {
		HostIP    string `json:"host_ip"`
		Published string
	}
	Logging     struct{ Options map[string]string }
	Healthcheck *struct{ Test []string }
	Deploy      struct {
		Resources struct{ Limits map[string]any }
	}
	Volumes []struct{ Type, Source, Target string }
}

// Every service of every profile is held down: no root, nothing writable but named
// places, no capability, no new privilege, bounded in memory, processor and log.
func TestConfig(t *testing.T) {
	p := newProject(t)
	p.files = nil // the file as it is
	p.env = slices.DeleteFunc(p.env, func(v string) bool { return strings.Contains(v, "_PORT=") })
	for _, profiles := range [][]string{nil, {"ha"}, {"observe"}, {"k6"}, {"ha", "observe", "k6"}} {
		p.profile = profiles
		if _, err := p.try("config", "-q"); err != nil {
			t.Error(err)
		}
	}
	var file struct {
		Services map[string]service
		Networks map[string]struct{ Internal bool }
	}
	if err := json.Unmarshal([]byte(p.compose("config", "--format", "json")), &file); err != nil {
		t.Fatal(err)
	}
	once := map[string]bool{"secrets": true, "bundle": true, "k6": true}
	published := map[string]string{
		"proxy": ":3001", "lb": ":3002", "api": "127.0.0.1:8080", "prometheus": "127.0.0.1:9090", "grafana": "127.0.0.1:3000",
	}
	for _, name := range slices.Sorted(maps.Keys(file.Services)) {
		s := file.Services[name]
		if s.User == "" || s.User == "root" || strings.HasPrefix(s.User, "0") {
			t.Errorf("%s runs as %q", name, s.User)
		}
		if !s.ReadOnly || s.Privileged || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}) {
			t.Errorf("%s: %+v", name, s)
		}
		for _, limit := range []string{"cpus", "memory", "pids"} {
			if s.Deploy.Resources.Limits[limit] == nil && !once[name] {
				t.Errorf("%s has no limit of %s", name, limit)
			}
		}
		if s.Logging.Options["max-size"] == "" || s.Logging.Options["max-file"] == "" {
			t.Errorf("%s: its log grows for ever", name)
		}
		if (s.Restart == "no") != once[name] || s.Restart == "" {
			t.Errorf("%s: restart %q", name, s.Restart)
		}
		var ports []string
		for _, port := range s.Ports {
			ports = append(ports, port.HostIP+":"+port.Published)
		}
		if got := strings.Join(ports, " "); got != published[name] {
			t.Errorf("%s publishes %q, want %q", name, got, published[name])
		}
		for variable, value := range s.Environment {
			if value != nil && *value != "" && (strings.HasSuffix(variable, "TOKEN") || strings.HasSuffix(variable, "SECRET") || strings.HasSuffix(variable, "KEY") || strings.Contains(variable, "PASSWORD")) {
				t.Errorf("%s has a secret in its environment: %s", name, variable)
			}
		}
		for _, v := range s.Volumes {
			if strings.Contains(v.Source, "docker.sock") {
				t.Errorf("%s has the engine's socket", name)
			}
		}
		if strings.HasPrefix(name, "proxy") {
			var took time.Duration
			for _, variable := range []string{"SHUTDOWN_DELAY", "SHUTDOWN_TIMEOUT"} {
				if v := s.Environment[variable]; v != nil {
					d, err := time.ParseDuration(*v)
					if err != nil {
						t.Error(err)
					}
					took += d
				}
			}
			if grace, err := time.ParseDuration(s.Grace); err != nil || grace <= took || took == 0 {
				t.Errorf("%s is killed after %v and may take %v: %v", name, grace, took, err)
			}
		}
	}
	// What images look for must be where they look.
	for _, want := range []struct{ service, target, file string }{
		{"prometheus", "/etc/prometheus/prometheus.yml", ""}, {"prometheus", "/etc/prometheus/rules.yml", ""},
		{"grafana", "/etc/grafana/provisioning", "datasources/prometheus.yml"}, {"grafana", "/etc/grafana/provisioning", "dashboards/headgate.yml"},
		{"grafana", "/etc/grafana/dashboards", "headgate.json"},
		{"k6", "/scripts", "stress.js"}, {"k6", "/scripts", "quick.js"},
	} {
		found := false
		for _, v := range file.Services[want.service].Volumes {
			if v.Type == "bind" && v.Target == want.target {
				info, err := os.Stat(filepath.Join(v.Source, want.file))
				found = err == nil && info.Mode().IsRegular()
			}
		}
		if !found {
			t.Errorf("%s has no %s", want.service, path.Join(want.target, want.file))
		}
	}
	for name, internal := range map[string]bool{"clients": false, "upstream": false, "policy": true, "data": true, "replicas": true, "balanced": true} {
		if file.Networks[name].Internal != internal {
			t.Errorf("network %s: internal is %v", name, !internal)
		}
	}
	// Who shares a network with clients can be called by them.
	for name, s := range file.Services {
		if _, ok := s.Networks["clients"]; ok && name != "proxy" && name != "lb" && name != "k6" {
			t.Errorf("%s is among the clients", name)
		}
	}
	if t.Failed() {
		t.Log(fmt.Sprint(slices.Sorted(maps.Keys(file.Services))))
	}
}
