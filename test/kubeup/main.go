// Command kubeup runs a real Kubernetes in the foreground. `make kube DIR=d` builds and runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/ebb-dev/ebb/internal/testkube"
)

func main() {
	dir := flag.String("dir", "", "directory of the Kubernetes (required)")
	programs := flag.String("programs", "", "directory of its programs, which test/kube/build prints (required)")
	nodes := flag.Int("nodes", 3, "number of nodes, n1 to nN like those of ebb up, on which KWOK runs pods")
	flag.Parse()
	if *dir == "" || *programs == "" || *nodes < 0 {
		fmt.Fprintln(os.Stderr, "kubeup: set --dir and --programs; --nodes must not be negative")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *programs, *nodes); err != nil {
		fmt.Fprintln(os.Stderr, "kubeup:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, programs string, nodes int) error {
	o := testkube.Options{Dir: dir, Programs: programs}
	for i := range nodes {
		o.Nodes = append(o.Nodes, fmt.Sprintf("n%d", i+1))
	}
	c, err := testkube.Start(ctx, o)
	if err != nil {
		return err
	}
	defer c.Stop()
	fmt.Println("ready")
	select {
	case <-ctx.Done():
		return nil
	case err := <-c.Ended():
		return err
	}
}
