// Package kubeclient makes clients that work with both the embedded API and a full Kubernetes API.
package kubeclient

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// NewScheme returns a scheme with every type that Ebb reads or writes.
func NewScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(s))
	utilruntime.Must(corev1.AddToScheme(s))
	utilruntime.Must(coordinationv1.AddToScheme(s))
	utilruntime.Must(eventsv1.AddToScheme(s))
	utilruntime.Must(policyv1.AddToScheme(s))
	return s
}

// NewMapper maps every object that Ebb reads or writes without asking the server, so that a client is ready at once
// and does not depend on discovery.
func NewMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion, corev1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion, eventsv1.SchemeGroupVersion, policyv1.SchemeGroupVersion})
	known := NewScheme().KnownTypes(v1alpha1.GroupVersion)
	for kind := range known {
		if known[kind+"List"] == nil {
			continue // a list, or what every group has
		}
		scope := meta.RESTScopeNamespace
		if slices.Contains(v1alpha1.ClusterScoped, kind) {
			scope = meta.RESTScopeRoot
		}
		m.Add(v1alpha1.GroupVersion.WithKind(kind), scope)
	}
	m.AddSpecific(v1alpha1.GroupVersion.WithKind("Settings"),
		v1alpha1.GroupVersion.WithResource("settings"), v1alpha1.GroupVersion.WithResource("settings"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("PodList"), meta.RESTScopeNamespace)
	m.Add(policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"), meta.RESTScopeNamespace)
	m.Add(policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudgetList"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	m.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	// A cache that is bound to a namespace asks for the list by its own name.
	m.Add(coordinationv1.SchemeGroupVersion.WithKind("LeaseList"), meta.RESTScopeNamespace)
	m.Add(eventsv1.SchemeGroupVersion.WithKind("Event"), meta.RESTScopeNamespace)
	return m
}

// Load reads a kubeconfig file.
func Load(path string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return Tune(cfg), nil
}

// ServiceAccountDir is where a pod finds the credentials of its service account.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// InCluster is the configuration of a process in a pod: the address of the API server from the environment, token and authority from a directory. The
// token is read again when it is replaced.
func InCluster(dir string) (*rest.Config, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: run in a pod, or set --kubeconfig")
	}
	token := filepath.Join(dir, "token")
	if _, err := os.Stat(token); err != nil {
		return nil, fmt.Errorf("service account: %w", err)
	}
	return Tune(&rest.Config{
		Host: "https://" + net.JoinHostPort(host, port), BearerTokenFile: token, TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt")},
	}), nil
}

// Tune configures a client: JSON, because custom resources support no other format and Leases are custom resources in the embedded API;
// and no client-side rate limit, because a lease renewal must never queue behind other requests.
func Tune(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	cfg.QPS = -1
	cfg.UserAgent = "ebb"
	return cfg
}

// ForRenewals configures a client for renewals of a lease, whose caller has a schedule of its own and little time. It has a connection of
// its own, and HTTP/1.1 gives up a stalled one at the first timeout. A server that starts or is busy asks clients to come back later, and
// client-go obeys within the request: it sleeps, 5 s long for a starting server, until the time of the request is up. Without that
// header the caller learns of the refusal at once.
func ForRenewals(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.NextProtos = []string{"http/1.1"}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return noRetryAfter{next} })
	return cfg
}

// noRetryAfter hides from client-go that a server asks to come back later.
type noRetryAfter struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t noRetryAfter) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if resp != nil {
		resp.Header.Del("Retry-After")
	}
	return resp, err
}

// WrappedRoundTripper implements net.RoundTripperWrapper, by which client-go finds the transport.
func (t noRetryAfter) WrappedRoundTripper() http.RoundTripper { return t.next }

// New makes a client that reads live, from the server.
func New(cfg *rest.Config) (client.WithWatch, error) {
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: NewScheme(), Mapper: NewMapper()})
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", cfg.Host, err)
	}
	return c, nil
}

// IsMissing reports whether an error means that an object does not exist. A server that is still starting, or that has
// never heard of the kind, also answers 404; a caller that took that for a missing object would start from nothing.
func IsMissing(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name != "" && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Older returns whether one version of an object was written before another. Versions that cannot be compared are not.
func Older(a, b client.Object) bool {
	c, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && c < 0 && a.GetUID() == b.GetUID()
}
