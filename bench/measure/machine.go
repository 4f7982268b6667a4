package measure

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"headgate/bench/report"
	"headgate/bench/stack"
)

// cpuOf is the processor time in seconds that a process and its children have used
// since they started; 0 where the system does not tell.
func cpuOf(pid int) (seconds float64) {
	if pid == 0 {
		return 0
	}
	seconds = cpuClock(pid)
	if pid == os.Getpid() {
		return seconds // its children are the servers
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for child := range strings.FieldsSeq(string(children)) {
		if n, err := strconv.Atoi(child); err == nil {
			seconds += cpuOf(n)
		}
	}
	return seconds
}

// ticksOf is the processor time of a process in hundredths of a second, that of the
// kernel apart; 0 where the system does not tell.
func ticksOf(pid int) (u use) {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may hold anything else
	if fields := strings.Fields(rest); len(fields) > 12 {
		u.program, _ = strconv.ParseFloat(fields[11], 64)
		u.kernel, _ = strconv.ParseFloat(fields[12], 64)
	}
	return u
}

// memoryOf is the resident memory of a process in bytes.
func memoryOf(pid int) float64 {
	return field(fmt.Sprintf("/proc/%d/status", pid), "VmRSS") * 1024
}

// field is the number of a line "name: number …" of a file.
func field(file, name string) float64 {
	text := line(file, name)
	number, _, _ := strings.Cut(text, " ")
	n, _ := strconv.ParseFloat(number, 64)
	return n
}

// line is what follows "name:" in a file.
func line(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func machine() report.Machine {
	m := report.Machine{
		CPU: line("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Memory: field("/proc/meminfo", "MemTotal") * 1024,
		System: runtime.GOOS + "/" + runtime.GOARCH, Load: "not known",
	}
	if m.CPU == "" {
		m.CPU = runtime.GOARCH
	}
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.System = "Linux " + strings.TrimSpace(string(kernel)) + ", " + m.System
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(load))[:3], " ")
	}
	return m
}

// loadAverage is that of the last minute.
func loadAverage() (n float64) {
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	n, _ = strconv.ParseFloat(first, 64)
	return n
}

var versionNumber = regexp.MustCompile(`\d+\.\d+[\w.]*`)

// versions are those of the programs that took part.
func versions(ctx context.Context, st *stack.Stack) map[string]string {
	v := map[string]string{"Go": strings.TrimPrefix(runtime.Version(), "go")}
	for name, command := range map[string][]string{
		"OPA": {st.OPABinary, "version"}, "Redis": {"redis-server", "--version"}, "HAProxy": {"haproxy", "-v"}, "nginx": {"nginx", "-v"},
	} {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
		if found := versionNumber.Find(out); err == nil && found != nil {
			v[name] = string(found)
		}
	}
	if out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output(); err == nil {
		v["Headgate"] = strings.TrimSpace(string(out))
	}
	return v
}
