package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/internal/coordinator"
)

// successorTimeout is how long resign waits to name the successor. A busy machine may need several attempts.
const successorTimeout = time.Minute

func newResign() *cobra.Command {
	var c cluster
	var out output
	cmd := &cobra.Command{
		Use:   "resign",
		Short: "Let another node take over from the coordinator",
		Long: `Let another node take over from the coordinator. The controllers of the old coordinator stop before those of the new one start.
The command is refused if no other node can take over.`,
		Example: "  ebb resign",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			result, err := resign(cmd.Context(), &c)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), result, func() string {
				return fmt.Sprintf("%s resigned; the coordinator is now %s\n", result.Resigned, result.Coordinator)
			})
		},
	}
	c.addFlags(cmd.Flags())
	c.addTokenFlag(cmd.Flags())
	out.addFlag(cmd.Flags())
	return cmd
}

type resignation struct {
	Resigned    string `json:"resigned"`
	Coordinator string `json:"coordinator"`
}

func resign(ctx context.Context, c *cluster) (resignation, error) {
	var result resignation
	cl, err := c.client()
	if err != nil {
		return result, err
	}
	url, err := coordinator.URL(ctx, cl)
	if err != nil {
		return result, err
	}
	if err := c.post(ctx, url, "/api/v2/owner/resign", &result); err != nil {
		return result, unanswered(err, url)
	}
	result.Coordinator, err = awaitCoordinator(ctx, cl)
	return result, err
}

func awaitCoordinator(ctx context.Context, c client.Client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, successorTimeout)
	defer cancel()
	for {
		name, err := coordinator.Locate(ctx, c)
		if !errors.Is(err, coordinator.ErrNone) {
			return name, err
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("the coordinator resigned, but no other node took over within %s: check `ebb status` and the logs of the nodes", successorTimeout)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// unanswered names the coordinator in the error of a request that it did not answer: the cluster is the right one, and its node may be dead. Its own
// answers stay as they are.
func unanswered(err error, coordinator *url.URL) error {
	if failed := (*url.Error)(nil); !errors.As(err, &failed) {
		return err
	}
	return fmt.Errorf("the coordinator at %s could not be asked: %v; if its node is dead or frozen, another one takes over within the duration of a lease: `ebb status` shows which", coordinator.Host, err) //nolint:errorlint // another hint would be added to a wrapped one
}
