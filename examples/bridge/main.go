// Command bridge drains nodes for a scheduler that is not Ebb: it runs a command until the command says that the node is empty. It is the
// smallest controller of a custom drain, and the beginning of your own (docs/custom-drains.md).
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os/exec"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

var requests = schema.GroupVersionResource{Group: "nvsentinel.nvidia.com", Version: "v1alpha1", Resource: "drainrequests"}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file")
	namespace := flag.String("namespace", "nvsentinel", "namespace of the requests")
	command := flag.String("command", "", "program that gets a node's name; it exits with 0 when the node is empty, and with 1 when it is not yet")
	flag.Parse()
	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	objects := dynamic.NewForConfigOrDie(cfg).Resource(requests).Namespace(*namespace)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	informer := dynamicinformer.NewFilteredDynamicInformer(dynamic.NewForConfigOrDie(cfg), requests, *namespace, 0, cache.Indexers{}, nil).Informer()
	add := func(o any) { queue.Add(o.(*unstructured.Unstructured).GetName()) }
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }}); err != nil {
		log.Fatal(err)
	}
	go informer.RunWithContext(context.Background())
	for {
		name, _ := queue.Get()
		done, err := reconcile(context.Background(), objects, name, *command)
		if err != nil {
			log.Printf("%s: %v", name, err)
			queue.AddRateLimited(name)
		} else if queue.Forget(name); !done {
			queue.AddAfter(name, 200*time.Millisecond)
		}
		queue.Done(name)
	}
}

// reconcile takes a request one step further, and returns whether nothing is left to do for it.
func reconcile(ctx context.Context, objects dynamic.ResourceInterface, name, command string) (done bool, err error) {
	request, err := objects.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (condition(request, "DrainComplete") == "True" || condition(request, "DrainFailed") == "True") {
		return true, nil // gone, or ended
	} else if err != nil {
		return false, err
	}
	node, _, _ := unstructured.NestedString(request.Object, "spec", "nodeName") // the definition requires it
	if condition(request, "DrainInProgress") != "True" {
		return false, set(ctx, objects, request, "DrainInProgress", "True", "DrainStarted", "")
	}
	out, err := exec.CommandContext(ctx, command, node).CombinedOutput()
	switch exit := new(exec.ExitError); {
	case err == nil:
		return true, set(ctx, objects, request, "DrainComplete", "True", "AllJobsCompleted", "")
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		return false, nil
	}
	return true, set(ctx, objects, request, "DrainFailed", "True", "CommandFailed", string(out)+err.Error())
}

func condition(o *unstructured.Unstructured, kind string) string {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range list {
		if c, ok := c.(map[string]any); ok && c["type"] == kind {
			return c["status"].(string)
		}
	}
	return ""
}

func set(ctx context.Context, objects dynamic.ResourceInterface, o *unstructured.Unstructured, kind, status, reason, message string) error {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	rest := []any{map[string]any{"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}}
	for _, c := range list {
		if c.(map[string]any)["type"] != kind {
			rest = append(rest, c)
		}
	}
	_ = unstructured.SetNestedSlice(o.Object, rest, "status", "conditions") // a list of maps of strings
	_, err := objects.UpdateStatus(ctx, o, metav1.UpdateOptions{})
	return err
}
