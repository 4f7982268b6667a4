package stack

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var passwordHash = regexp.MustCompile(`#[0-9a-f]{64}`)

// redisArgs prepares Redis with the repository's configuration and access list.
// Every user gets the password of this run, and the default user, which the
// shipped list switches off, may do everything: it is the tester's.
func redisArgs(root, dir string, port int, password string) ([]string, error) {
	sum := sha256.Sum256([]byte(password))
	hash := "#" + hex.EncodeToString(sum[:])
	shipped, err := os.ReadFile(filepath.Join(root, "redis", "users.acl"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the access list of Redis: %w", err)
	}
	list := []string{"user default on " + hash + " ~* &* +@all"}
	for line := range strings.Lines(string(shipped)) {
		if !strings.HasPrefix(line, "user default ") {
			list = append(list, passwordHash.ReplaceAllString(strings.TrimSpace(line), hash))
		}
	}
	acl := filepath.Join(dir, "users.acl")
	if err := os.WriteFile(acl, []byte(strings.Join(list, "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	return []string{
		filepath.Join(root, "redis", "redis.conf"),
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--aclfile", acl, "--dir", dir,
		"--daemonize", "no",
	}, nil
}

// pingRedis succeeds when the server answers, if only to ask for a password.
func pingRedis(address string) func(context.Context) error {
	return func(context.Context) error {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		if _, err := fmt.Fprint(conn, "PING\r\n"); err != nil {
			return err
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil && !strings.HasPrefix(line, "+PONG") && !strings.HasPrefix(line, "-NOAUTH") {
			err = fmt.Errorf("it says %q", line)
		}
		return err
	}
}
