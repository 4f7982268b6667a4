// Package kubernetes holds the manifest of the pod, proxy and OPA side by side, and
// the tests that read it as the API server does. It is a module of its own, so that
// the product does not depend on Kubernetes' types.
package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	name      = "headgate"
	secrets   = "/run/secrets"
	root      = "../.."
	kubelet   = 30 * time.Second // what Kubernetes may take for the rest of a stop
	instance  = "app.kubernetes.io/name"
	opaSocket = "unix:///run/opa/opa.sock"
)

// manifest is headgate.yaml, each document in the API's own type.
type manifest struct {
	settings   map[string]string // of the proxy
	policy     map[string]string // of OPA
	deployment appsv1.Deployment
	service    corev1.Service
	admin      corev1.Service
	disruption policyv1.PodDisruptionBudget
	network    networkingv1.NetworkPolicy
}

func load(t *testing.T) *manifest {
	t.Helper()
	b, err := os.ReadFile("headgate.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m := &manifest{}
	var config, policy corev1.ConfigMap
	want := map[string]any{
		"v1 ConfigMap headgate":                       &config,
		"v1 ConfigMap headgate-opa":                   &policy,
		"apps/v1 Deployment headgate":                 &m.deployment,
		"v1 Service headgate":                         &m.service,
		"v1 Service headgate-admin":                   &m.admin,
		"policy/v1 PodDisruptionBudget headgate":      &m.disruption,
		"networking.k8s.io/v1 NetworkPolicy headgate": &m.network,
	}
	for document := range bytes.SplitSeq(b, []byte("\n---\n")) {
		var head struct {
			metav1.TypeMeta   `json:",inline"`
			metav1.ObjectMeta `json:"metadata"`
		}
		if err := yaml.Unmarshal(document, &head); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		key := head.APIVersion + " " + head.Kind + " " + head.Name
		into, ok := want[key]
		if !ok {
			t.Fatalf("unexpected document %q", key)
		}
		delete(want, key)
		if err := yaml.UnmarshalStrict(document, into); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		if head.Labels[instance] != name || head.Namespace != "" {
			t.Errorf("%s: labels %v, namespace %q", key, head.Labels, head.Namespace)
		}
	}
	if len(want) > 0 {
		t.Fatalf("the manifest lacks %q", slices.Sorted(maps.Keys(want)))
	}
	m.settings, m.policy = config.Data, policy.Data
	return m
}

func (m *manifest) pod() *corev1.PodSpec       { return &m.deployment.Spec.Template.Spec }
func (m *manifest) proxy() *corev1.Container   { return &m.pod().Containers[0] }
func (m *manifest) sidecar() *corev1.Container { return &m.pod().InitContainers[0] }

// env is what a container is started with.
func (m *manifest) env(t *testing.T, c *corev1.Container) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, from := range c.EnvFrom {
		switch from.ConfigMapRef.Name {
		case "headgate":
			maps.Copy(all, m.settings)
		case "headgate-opa":
			maps.Copy(all, m.policy)
		default:
			t.Errorf("%s: no ConfigMap %q", c.Name, from.ConfigMapRef.Name)
		}
	}
	for _, e := range c.Env {
		if _, ok := all[e.Name]; ok || e.ValueFrom != nil {
			t.Errorf("%s: %s is set twice, or shows a secret to whoever lists the pod", c.Name, e.Name)
		}
		all[e.Name] = e.Value
	}
	return all
}

func TestPod(t *testing.T) {
	m := load(t)
	pod := m.pod()
	if len(pod.Containers) != 1 || len(pod.InitContainers) != 1 || m.proxy().Name != "proxy" || m.sidecar().Name != "opa" {
		t.Fatal("want one proxy, and OPA as its sidecar")
	}
	if always := m.sidecar().RestartPolicy; always == nil || *always != corev1.ContainerRestartPolicyAlways {
		t.Error("OPA would not outlive a stop of the proxy: want restartPolicy Always")
	}
	if s := pod.SecurityContext; !*s.RunAsNonRoot || *s.RunAsUser == 0 || *s.FSGroup != *s.RunAsUser || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod's security: %v", s)
	}
	if *pod.AutomountServiceAccountToken || *pod.EnableServiceLinks {
		t.Error("the pod gets a token for Kubernetes, or variables by the names of services")
	}
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v
	}
	for _, c := range []*corev1.Container{m.proxy(), m.sidecar()} {
		s := c.SecurityContext
		if !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !reflect.DeepEqual(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: %v", c.Name, s)
		}
		cpu, memory, limit := c.Resources.Requests[corev1.ResourceCPU], c.Resources.Requests[corev1.ResourceMemory], c.Resources.Limits[corev1.ResourceMemory]
		if cpu.IsZero() || memory.IsZero() || limit.Cmp(memory) < 0 {
			t.Errorf("%s: resources %v", c.Name, c.Resources)
		}
		soft, err := resource.ParseQuantity(strings.TrimSuffix(m.env(t, c)["GOMEMLIMIT"], "B"))
		if err != nil || soft.Cmp(limit) >= 0 {
			t.Errorf("%s: GOMEMLIMIT %v, limit %v, %v", c.Name, &soft, &limit, err)
		}
		if c.StartupProbe == nil || c.LivenessProbe == nil {
			t.Errorf("%s has no probes", c.Name)
		}
		socket := false
		for _, mount := range c.VolumeMounts {
			if _, ok := volumes[mount.Name]; !ok {
				t.Errorf("%s: no volume %q", c.Name, mount.Name)
			}
			socket = socket || mount.Name == "opa-socket" && mount.MountPath == filepath.Dir(strings.TrimPrefix(opaSocket, "unix://"))
		}
		if !socket {
			t.Errorf("%s does not see the socket", c.Name)
		}
	}
	if v := volumes["opa-socket"]; v.EmptyDir == nil {
		t.Error("the socket wants an emptyDir")
	}
}

// Selectors find the pods, and ports have names that the container has.
func TestReferences(t *testing.T) {
	m := load(t)
	labels := m.deployment.Spec.Template.Labels
	for what, selector := range map[string]map[string]string{
		"deployment": m.deployment.Spec.Selector.MatchLabels, "service": m.service.Spec.Selector, "admin": m.admin.Spec.Selector,
		"disruption": m.disruption.Spec.Selector.MatchLabels, "network": m.network.Spec.PodSelector.MatchLabels,
		"spread": m.pod().TopologySpreadConstraints[0].LabelSelector.MatchLabels,
	} {
		if len(selector) == 0 || !reflect.DeepEqual(selector, labels) {
			t.Errorf("%s selects %v, pods have %v", what, selector, labels)
		}
	}
	ports := map[string]int32{}
	for _, p := range m.proxy().Ports {
		ports[p.Name] = p.ContainerPort
	}
	for _, s := range []corev1.Service{m.service, m.admin} {
		for _, p := range s.Spec.Ports {
			if ports[p.TargetPort.StrVal] == 0 {
				t.Errorf("service %s: no port %q", s.Name, p.TargetPort.StrVal)
			}
		}
	}
	open := map[string]bool{} // to everybody
	for _, rule := range m.network.Spec.Ingress {
		for _, p := range rule.Ports {
			if ports[p.Port.StrVal] == 0 {
				t.Errorf("network policy: no port %q", p.Port.StrVal)
			}
			open[p.Port.StrVal] = len(rule.From) == 0
		}
	}
	if want := map[string]bool{"http": true, "admin": false}; !reflect.DeepEqual(open, want) {
		t.Errorf("open to everybody: %v, want %v", open, want)
	}
	if n := m.disruption.Spec.MaxUnavailable; n == nil || n.IntValue() != 1 || *m.deployment.Spec.Replicas < 2 {
		t.Errorf("disruption %v of %d", n, *m.deployment.Spec.Replicas)
	}
	if m.admin.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Error("the admin service wants an address for each pod")
	}
}

// OPA is started by flags it knows, with all that its configuration asks for.
func TestOPA(t *testing.T) {
	m := load(t)
	opa := m.sidecar()
	if m.env(t, m.proxy())["OPA_URL"] != opaSocket || !slices.Contains(opa.Args, "--addr="+opaSocket) {
		t.Errorf("proxy and OPA do not meet: %v", opa.Args)
	}
	for _, probe := range []*corev1.Probe{opa.StartupProbe, opa.LivenessProbe} {
		if want := []string{"/health", opaSocket}; !reflect.DeepEqual(probe.Exec.Command, want) {
			t.Errorf("probe %v, want %v", probe.Exec.Command, want)
		}
	}
	config, err := os.ReadFile(filepath.Join(root, "opa", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config = regexp.MustCompile(`(?m)^ *#.*$`).ReplaceAll(config, nil)
	env := m.env(t, opa)
	if env["STATUS_TOKEN_FILE"] == "" {
		t.Error("OPA has no token for its status pushes")
	}
	for _, match := range regexp.MustCompile(`\$\{(\w+)\}`).FindAllStringSubmatch(string(config), -1) {
		name := match[1]
		if name == "STATUS_TOKEN" { // or its file
			continue
		}
		if env[name] == "" {
			t.Errorf("opa/config.yaml wants %s, which is not set", name)
		}
		delete(env, name)
	}
	delete(env, "STATUS_TOKEN_FILE")
	delete(env, "GOMEMLIMIT")
	if len(env) > 0 {
		t.Errorf("opa/config.yaml does not know %v", env)
	}
}

// The stop of a pod leaves the proxy the time that it takes for itself.
func TestGracePeriod(t *testing.T) {
	m := load(t)
	env := m.env(t, m.proxy())
	var sum time.Duration
	for _, name := range []string{"SHUTDOWN_DELAY", "SHUTDOWN_TIMEOUT"} {
		d, err := time.ParseDuration(env[name])
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		sum += d
	}
	if grace := time.Duration(*m.pod().TerminationGracePeriodSeconds) * time.Second; grace < sum+10*time.Second || grace > sum+kubelet {
		t.Errorf("%v to stop, of which the proxy takes up to %v", grace, sum)
	}
}

// The proxy itself starts with these settings, and its probes ask for what it has.
func TestProxyStarts(t *testing.T) {
	m := load(t)
	env := m.env(t, m.proxy())
	known := settings(t)
	for name := range env {
		if !known[name] && name != "GOMEMLIMIT" {
			t.Errorf("%s is no setting of the proxy", name)
		}
	}
	dir := t.TempDir()
	for name, value := range env {
		if strings.HasSuffix(name, "_FILE") {
			key, ok := strings.CutPrefix(value, secrets+"/")
			if !ok {
				t.Errorf("%s=%q is not below %s", name, value, secrets)
			}
			env[name] = filepath.Join(dir, key)
			content := "a-secret-of-this-test"
			if key == "redis_url" {
				content = "redis://127.0.0.1:1"
			}
			if err := os.WriteFile(env[name], []byte(content+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	proxy := filepath.Join(dir, "proxy")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", proxy, "./proxy")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(ctx context.Context, env map[string]string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, proxy, args...)
		cmd.Env = []string{}
		for name, value := range env {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		return cmd
	}
	if out, err := run(t.Context(), env, "check-config").CombinedOutput(); err != nil {
		t.Fatalf("check-config: %v\n%s", err, out)
	}

	// Nothing leaves this machine: other addresses stand for those of the example.
	addresses := map[int32]string{3001: free(t), 9091: free(t)}
	_, env["PORT"], _ = strings.Cut(addresses[3001], ":")
	env["HOST"], env["ADMIN_ADDR"] = "127.0.0.1", addresses[9091]
	env["UPSTREAM_URL"], env["JWT_JWKS_URL"] = "http://127.0.0.1:1/cwms-data", "http://127.0.0.1:1/keys"
	env["SHUTDOWN_DELAY"] = "0s"
	var log bytes.Buffer
	cmd := run(context.Background(), env)
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ports := map[string]int32{}
	for _, p := range m.proxy().Ports {
		ports[p.Name] = p.ContainerPort
	}
	var faults []string
	for probe, want := range map[*corev1.Probe][]int{
		m.proxy().StartupProbe: {200}, m.proxy().LivenessProbe: {200}, m.proxy().ReadinessProbe: {503}, // it has no OPA here
	} {
		url := "http://" + addresses[ports[probe.HTTPGet.Port.StrVal]] + probe.HTTPGet.Path
		if status := get(url); !slices.Contains(want, status) {
			faults = append(faults, fmt.Sprintf("%s: status %d, want %v", url, status, want))
		}
	}
	if status := get("http://" + addresses[9091] + "/metrics"); status != 200 {
		faults = append(faults, fmt.Sprintf("/metrics: status %d", status))
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		faults = append(faults, err.Error())
	}
	if len(faults) > 0 {
		t.Errorf("%s\nits log:\n%s", strings.Join(faults, "\n"), log.String())
	}
}

// settings are the variables that the proxy reads, from the tags of its Config.
func settings(t *testing.T) map[string]bool {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root, "proxy", "config.go"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, match := range regexp.MustCompile("`env:\"(\\w+)\"([^`]*)`").FindAllStringSubmatch(string(source), -1) {
		known[match[1]] = true
		if strings.Contains(match[2], `secret:"true"`) {
			known[match[1]+"_FILE"] = true
		}
	}
	if len(known) < 20 {
		t.Fatalf("found only %v", known)
	}
	return known
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// get is the status of a URL; 0 if nothing answers within half a minute.
func get(url string) int {
	client := &http.Client{Timeout: 5 * time.Second}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if res, err := client.Get(url); err == nil {
			res.Body.Close()
			return res.StatusCode
		}
	}
	return 0
}
