package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// samples are one small piece of every kind of work.
func samples() []client.Object {
	return []client.Object{
		sampleProgram("hello", v1alpha1.TypeDeployment, `while :; do echo "hello from $EBB_NODE"; sleep 3; done`),
		sampleProgram("heartbeat", v1alpha1.TypeDaemon, `while :; do echo "$EBB_NODE is up"; sleep 5; done`),
		&v1alpha1.Changefeed{
			ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: "stream"},
			Spec:       v1alpha1.ChangefeedSpec{Source: "datagen://?tables=30&rate=300", Sink: "blackhole://"},
		},
		&v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: "demo"}},
	}
}

func sampleProgram(name string, t v1alpha1.DeploymentType, script string) *v1alpha1.Deployment {
	return &v1alpha1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: name},
		Spec:       v1alpha1.DeploymentSpec{Type: t, Command: "/bin/sh", Args: []string{"-c", script}},
	}
}

// addSamples creates the samples that are not there. Those that are may have been changed by a person and stay as they are.
func addSamples(ctx context.Context, dir datadir.Dir) error {
	cfg, err := kubeclient.Load(dir.Kubeconfig())
	if err != nil {
		return err
	}
	c, err := kubeclient.New(cfg)
	if err != nil {
		return err
	}
	for _, object := range samples() {
		if err := client.IgnoreAlreadyExists(c.Create(ctx, object)); err != nil {
			return fmt.Errorf("sample %s: %w", object.GetName(), err)
		}
	}
	return nil
}
