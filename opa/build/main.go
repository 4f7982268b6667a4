// Command build makes the policy bundle that OPA fetches.
//
//	go run -C opa ./build -opa ../.bin/opa -out ../.bin/bundle.tar.gz
//
// The bundle is optimised for its entrypoints. Its revision is the time of the
// build in seconds since 1970 and twelve hex digits of the SHA-256 of its
// content, so that revisions sort by time and equal content is seen at a glance;
// the commit it was built from is in the metadata of the manifest. The file is
// replaced by a rename: a reader sees the old bundle or the new one, never half.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Getenv, os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "build:", err)
		}
		stop()
		os.Exit(1)
	}
}

// build is one run of the command.
type build struct {
	opa          string
	out          string
	policies     list
	overlays     list
	entrypoints  list
	capabilities string
	signingKey   string
	signingAlg   string
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func (l *list) orElse(values ...string) {
	if len(*l) == 0 {
		*l = values
	}
}

func run(ctx context.Context, args []string, getenv func(string) string, stdout io.Writer) error {
	var b build
	flags := flag.NewFlagSet("build", flag.ContinueOnError)
	flags.StringVar(&b.opa, "opa", "opa", "the OPA `binary`")
	flags.StringVar(&b.out, "out", "bundle.tar.gz", "the bundle `file` to replace")
	flags.Var(&b.policies, "policy", "`directory` of policy and data; the first holds the .manifest (default policy)")
	flags.Var(&b.overlays, "data", "`file` of data to add, such as data/cda-guest.json")
	flags.Var(&b.entrypoints, "entrypoint", "`path` that is asked (default cwms/authz/decision and cwms/authz/allow)")
	flags.StringVar(&b.capabilities, "capabilities", "capabilities.json", "`file` of the built-ins that policy may use")
	flags.StringVar(&b.signingKey, "signing-key", "", "PEM `file` of the private key; without it the bundle is not signed")
	flags.StringVar(&b.signingAlg, "signing-alg", "ES256", "`algorithm` of the signature")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	b.policies.orElse("policy")
	b.entrypoints.orElse("cwms/authz/decision", "cwms/authz/allow")

	if err := absolute(&b.out, &b.capabilities, &b.signingKey); err != nil {
		return err
	}
	if strings.ContainsRune(b.opa, filepath.Separator) {
		if err := absolute(&b.opa); err != nil {
			return err
		}
	}
	built, err := buildTime(getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	revision, err := b.publish(ctx, built)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, revision)
	return nil
}

// absolute makes the given paths independent of the working directory.
func absolute(paths ...*string) (err error) {
	for _, path := range paths {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	return nil
}

// buildTime is now, or what SOURCE_DATE_EPOCH says, so that a build can be
// repeated byte for byte.
func buildTime(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Now(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q is no number of seconds", epoch)
	}
	return time.Unix(seconds, 0), nil
}

// publish stages the sources, builds, and replaces the published file.
func (b *build) publish(ctx context.Context, built time.Time) (revision string, err error) {
	stage, err := os.MkdirTemp("", "headgate-bundle-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(stage)

	content, err := b.content()
	if err != nil {
		return "", err
	}
	for _, f := range content {
		if err := f.write(stage); err != nil {
			return "", err
		}
	}
	if err := b.writeManifest(ctx, stage); err != nil {
		return "", err
	}
	revision = fmt.Sprintf("%d-%s", built.Unix(), digest(content))

	// Beside the published file: a rename is atomic only within a file system.
	temporary := filepath.Join(filepath.Dir(b.out), fmt.Sprintf(".%s.%d", filepath.Base(b.out), os.Getpid()))
	defer os.Remove(temporary)
	if err := b.opaBuild(ctx, stage, revision, temporary); err != nil {
		return "", err
	}
	// OPA makes the file readable by its owner alone, but another user serves it.
	if err := os.Chmod(temporary, 0o644); err != nil {
		return "", err
	}
	if err := os.Rename(temporary, b.out); err != nil {
		return "", err
	}
	return revision, nil
}

// file is one source of the bundle, named as it will be in there.
type file struct {
	name string
	data []byte
}

func (f file) write(dir string) error {
	path := filepath.Join(dir, filepath.FromSlash(f.name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, f.data, 0o644)
}

// content reads what goes into the bundle, sorted by name: policy without its
// tests, and data. Data files of one directory are merged, overlays at the root.
func (b *build) content() ([]file, error) {
	var content []file
	for i, dir := range b.policies {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			name, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			name = filepath.ToSlash(name)
			if !wanted(name) || (name == ".manifest" && i > 0) {
				return nil
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = append(content, file{name, data})
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("cannot read policy %q: %w", dir, err)
		}
	}
	if len(b.overlays) > 0 {
		overlay, err := merge(b.overlays)
		if err != nil {
			return nil, err
		}
		content = append(content, file{"data.json", overlay})
	}
	slices.SortFunc(content, func(a, b file) int { return strings.Compare(a.name, b.name) })
	for i := 1; i < len(content); i++ {
		if content[i].name == content[i-1].name {
			return nil, fmt.Errorf("two sources give %q", content[i].name)
		}
	}
	return content, nil
}

// wanted tells what OPA loads from a bundle directory: policy that is no test,
// data.json, and the manifest.
func wanted(name string) bool {
	base := name[strings.LastIndexByte(name, '/')+1:]
	if name == ".manifest" || base == "data.json" {
		return true
	}
	return strings.HasSuffix(base, ".rego") && !strings.HasSuffix(base, "_test.rego")
}

// merge joins the JSON objects in the files. Where two give a value for the same
// path, that is an error.
func merge(paths []string) ([]byte, error) {
	all := map[string]any{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("cannot read data: %w", err)
		}
		var object map[string]any
		if err := json.Unmarshal(data, &object); err != nil {
			return nil, fmt.Errorf("cannot read data %q: %w", path, err)
		}
		if err := mergeInto(all, object); err != nil {
			return nil, fmt.Errorf("cannot merge data %q: %w", path, err)
		}
	}
	return json.Marshal(all)
}

func mergeInto(dst, src map[string]any) error {
	for key, value := range src {
		old, taken := dst[key]
		if !taken {
			dst[key] = value
			continue
		}
		a, aok := old.(map[string]any)
		b, bok := value.(map[string]any)
		if !aok || !bok {
			return fmt.Errorf("%q is given twice", key)
		}
		if err := mergeInto(a, b); err != nil {
			return fmt.Errorf("%s.%w", key, err)
		}
	}
	return nil
}

// digest is the content's part of the revision. Lengths keep two contents with
// the same bytes in other files apart.
func digest(content []file) string {
	h := sha256.New()
	var size [8]byte
	for _, f := range content {
		for _, part := range [][]byte{[]byte(f.name), f.data} {
			binary.BigEndian.PutUint64(size[:], uint64(len(part)))
			h.Write(size[:])
			h.Write(part)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// writeManifest adds the commit to the staged manifest, and refuses one without
// roots: then OPA would take all data for known, and optimise rules over data
// that it gets later away.
func (b *build) writeManifest(ctx context.Context, stage string) error {
	path := filepath.Join(stage, ".manifest")
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("cannot read the manifest of %q: %w", b.policies[0], err)
	}
	var manifest map[string]any
	if err := json.Unmarshal(data, &manifest); err != nil {
		return fmt.Errorf("cannot read the manifest of %q: %w", b.policies[0], err)
	}
	roots, _ := manifest["roots"].([]any)
	if len(roots) == 0 || slices.Contains(roots, any("")) {
		return fmt.Errorf("the manifest of %q must list roots", b.policies[0])
	}
	manifest["metadata"] = map[string]any{"git": commit(ctx, b.policies[0])}
	if data, err = json.Marshal(manifest); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// commit names the commit that the policy was built from, marked when files
// differ from it; "unknown" outside a repository.
func commit(ctx context.Context, dir string) string {
	hash, err := git(ctx, dir, "rev-parse", "HEAD")
	if err != nil {
		return "unknown"
	}
	if changed, err := git(ctx, dir, "status", "--porcelain", "--", "."); err != nil || changed != "" {
		return hash + "-dirty"
	}
	return hash
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	return string(bytes.TrimSpace(out)), err
}

func (b *build) opaBuild(ctx context.Context, stage, revision, out string) error {
	// OPA names files as it is given them: from within, the names are the same
	// wherever the stage is, and equal content makes an equal bundle.
	args := []string{"build", "--bundle", ".", "--optimize", "1", "--revision", revision, "--output", out}
	for _, e := range b.entrypoints {
		args = append(args, "--entrypoint", e)
	}
	if b.capabilities != "" {
		args = append(args, "--capabilities", b.capabilities)
	}
	if b.signingKey != "" {
		args = append(args, "--signing-key", b.signingKey, "--signing-alg", b.signingAlg)
	}
	cmd := exec.CommandContext(ctx, b.opa, args...)
	cmd.Dir = stage
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("opa build failed: %w\n%s", err, output)
	}
	return nil
}
