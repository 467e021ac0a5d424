package member_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
)

// TestMain lets the test's own program be the child, as the ebb program is.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == member.Command {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := member.Main(ctx, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // or every member takes a second longer to end
	os.Exit(m.Run())
}
