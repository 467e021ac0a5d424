// Package need says what a test needs of the machine. Without it the test is skipped, except on CI, where a missing dependency is a failure.
package need

import (
	"os"
	"os/exec"
	"testing"
)

// OnCI says whether nothing may be skipped.
func OnCI() bool { return os.Getenv("CI") == "true" }

// Missing ends a test that cannot run here.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if OnCI() {
		t.Fatalf(format+" (on CI nothing is skipped)", args...)
	}
	t.Skipf(format, args...)
}

// Programs are those that test/setup installs.
func Programs(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			Missing(t, "%s is missing: run test/setup, which installs it", p)
		}
	}
}

// Root is for what no other user may do.
func Root(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "only root can %s", what)
	}
}
