package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// addSamples creates the missing samples. Existing ones may have been changed and stay as they are.
func addSamples(ctx context.Context, dir datadir.Dir) error {
	cfg, err := kubeclient.Load(dir.Kubeconfig())
	if err != nil {
		return err
	}
	c, err := kubeclient.New(cfg)
	if err != nil {
		return err
	}
	for _, object := range kinds.Samples() {
		if err := client.IgnoreAlreadyExists(c.Create(ctx, object)); err != nil {
			return fmt.Errorf("sample %s: %w", object.GetName(), err)
		}
	}
	return nil
}
