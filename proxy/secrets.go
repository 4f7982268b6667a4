package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// makeSecret writes a random secret into each named file that is not there yet,
// for the settings that are read from files. It is for the first start of a
// deployment; what is there stays.
func makeSecret(_ context.Context, args, _ []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("want the files to write")
	}
	for _, file := range args {
		switch info, err := os.Stat(file); {
		case err == nil && info.Size() == 0:
			return fmt.Errorf("%q is empty: want a secret in it, or no file", file)
		case err == nil:
			continue
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
		if err := writeSecret(file); err != nil {
			return fmt.Errorf("cannot write a secret: %w", err)
		}
		fmt.Fprintf(out, "%s has a new secret\n", file)
	}
	return nil
}

// writeSecret makes the file whole or not at all, and lets one that came in
// between stand.
func writeSecret(file string) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".secret-") // for its owner alone
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	_, err = fmt.Fprintln(f, hex.EncodeToString(secret[:]))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
