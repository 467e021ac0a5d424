package testenv

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// KubePrograms is the directory of the programs of a real Kubernetes, built once into the user's cache.
func KubePrograms(t testing.TB) string {
	t.Helper()
	dir, err := kubePrograms()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var kubePrograms = sync.OnceValues(func() (string, error) {
	cmd := exec.Command(filepath.Join(root(), "test", "kube", "build"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("test/kube/build: %w\n%s", err, errs.String())
	}
	return strings.TrimSpace(out.String()), nil
})
