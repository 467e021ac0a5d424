package testkube_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testkube"
)

// patience bounds every wait on a busy machine.
const patience = 4 * time.Minute

func TestPodsUseTheirGraceAndFinalizersHold(t *testing.T) {
	ctx, dir := context.Background(), filepath.Join(t.TempDir(), "kube")
	c, err := testkube.Start(ctx, testkube.Options{Dir: dir, Programs: testenv.KubePrograms(t), Nodes: []string{"k1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	if info, err := os.Stat(c.Kubeconfig()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v, %v", info.Mode(), err)
	}
	if _, err := testkube.Start(ctx, testkube.Options{Dir: dir, Programs: testenv.KubePrograms(t)}); err == nil || !strings.Contains(err.Error(), "already runs") {
		t.Errorf("a second Kubernetes in the same directory: %v", err)
	}
	kube, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	pods := kube.CoreV1().Pods(metav1.NamespaceDefault)
	for _, name := range []string{"plain", "held"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(3)), Containers: []corev1.Container{{Name: "c", Image: "none"}},
		}}
		if name == "held" {
			pod.Finalizers = []string{"ebb.dev/test"}
		}
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	get := func(name string) *corev1.Pod {
		p, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, name := range []string{"plain", "held"} {
		until(t, "pod "+name+" to run", func() bool { return get(name).Status.Phase == corev1.PodRunning })
		if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ends := get("plain").DeletionTimestamp.Time // the API server's word for when the grace is over
	until(t, "the plain pod to be gone", func() bool { return get("plain") == nil })
	if early := time.Until(ends); early > 0 {
		t.Errorf("the pod was gone %s before its grace was over", early)
	}
	if held := get("held"); held == nil || held.DeletionTimestamp == nil {
		t.Error("the pod with a finalizer is gone")
	}
	free := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := pods.Patch(ctx, "held", types.MergePatchType, free, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the pod without its finalizer to be gone", func() bool { return get("held") == nil })

	address := strings.TrimPrefix(c.Config().Host, "https://")
	err = c.WithoutAPI(ctx, func() {
		if l, err := net.Listen("tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("another process can take the port of the API server: %v, %v", l, err)
		}
		if _, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a connection while the API server is away: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if get("plain") != nil {
		t.Error("the pod is back")
	}
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}
