// Package apiserver is Ebb's embedded Kubernetes API, for machines without Kubernetes: the server of custom resources on an embedded
// etcd, with its own certificates, four identities, and admission checks that a schema cannot express. Stock clients work with it.
package apiserver

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/group"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes/scheme"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/common"
	"sigs.k8s.io/controller-runtime/pkg/client"

	noopoteltrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/apiserver/core"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/pki"
)

// Server is a running embedded API.
type Server struct {
	opts     Options
	policy   policy
	unlock   func()
	ca       *pki.Authority
	store    *store // nil on an external etcd
	listener *listener
	leases   coordinationclient.LeaseInterface
	objects  client.Client
	config   *rest.Config
	api      *apiextensions.CustomResourceDefinitions
	crds     []*apiextensionsv1.CustomResourceDefinition
	// deletions of definitions, which are customers' too.
	deletions *deletions
	// namespaces exist once usable is set; before that only the server itself creates objects in them.
	namespaces *namespaces
	usable     atomic.Bool
	// served opens the server to everyone else.
	served gate
}

// While the server ends it answers nobody, and nodes cannot renew their leases. Every node has watches open all the time. Without a grace
// period the server would not end them but wait for them, a minute long; a request that hangs is given up after the timeout.
const (
	watchGrace      = 100 * time.Millisecond
	shutdownTimeout = 2 * time.Second
	// sendTime is what an answer that was given has to leave the server.
	sendTime = 50 * time.Millisecond
	// stopLimit is how long the whole end may take. It takes less than a second; but the libraries wait for requests, caches and connections without
	// end, and whoever ends the process by force loses nothing either.
	stopLimit = 30 * time.Second
)

// ErrHangs: the server was asked to end, and some part of it did not.
var ErrHangs = errors.New("the server did not stop")

// New opens the store and the port and sets up the server, but does not serve yet.
func New(ctx context.Context, o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := o.Dir.CheckNobodyElses(""); err != nil {
		return nil, err
	}
	if err := o.Dir.Create(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir.APIServer(), 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	s := &Server{opts: o, policy: newPolicy(o.Objects), served: newGate()}
	if err := s.open(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) (err error) {
	dir := s.opts.Dir
	if s.crds, err = allCRDs(); err != nil {
		return err
	}
	if s.unlock, err = lockDir(dir); err != nil {
		return err
	}
	if s.ca, err = pki.LoadOrCreate(dir.PKI()); err != nil {
		return err
	}
	if s.listener, err = listen(dir.APIServer(), s.opts.Listen); err != nil {
		return err
	}
	if len(s.opts.EtcdServers) == 0 {
		ready, cancel := context.WithTimeoutCause(ctx, storeReadyTimeout, errStoreSlow)
		defer cancel()
		if s.store, err = startStore(ready, filepath.Join(dir.APIServer(), "etcd"), s.opts.libraryLog()); err != nil {
			return err
		}
	}
	if err := s.build(); err != nil {
		return s.explain(err)
	}
	return nil
}

// explain names the etcd in an error. An etcd that does not answer may only have refused our certificate.
func (s *Server) explain(err error) error {
	switch servers := strings.Join(s.opts.EtcdServers, ","); {
	case servers == "":
		return fmt.Errorf("embedded API: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("embedded API on etcd at %s: %w; check that it is reachable and that the TLS files are correct", servers, err)
	default:
		return fmt.Errorf("embedded API on etcd at %s: %w", servers, err)
	}
}

// lockDir locks the data directory: a second server would take over the first one's socket and then wait for its data.
func lockDir(dir datadir.Dir) (unlock func(), err error) {
	unlock, err = datadir.Lock(dir.APIServerLock())
	if errors.Is(err, datadir.ErrLocked) {
		return nil, fmt.Errorf("data directory %s: %w: stop the API server that uses it, or set another directory with --data-dir", dir, datadir.ErrLocked)
	}
	return unlock, err
}

// URL is where clients reach the server.
func (s *Server) URL() string {
	host, port, _ := net.SplitHostPort(s.listener.Addr().String())
	if len(s.opts.Advertise) > 0 {
		host = s.opts.Advertise[0]
	}
	return (&url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}).String()
}

// Run serves until ctx ends, and calls ready once every object can be used and the credentials are written. A server that does not end is given up:
// then Run returns ErrHangs, and the process has to end.
func (s *Server) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return within(ctx, stopLimit, func() error { return s.run(ctx, cancel, ready) })
}

// within calls run, which ends when ctx does, and waits for it only so long after that.
func within(ctx context.Context, limit time.Duration, run func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case err := <-ended:
		return err
	case <-late.C:
		return fmt.Errorf("embedded API: %w within %s; every change that was acknowledged is stored", ErrHangs, limit)
	}
}

func (s *Server) run(ctx context.Context, cancel context.CancelCauseFunc, ready func()) error {
	defer s.close()
	if s.store != nil {
		go func() {
			select {
			case err := <-s.store.failed():
				cancel(fmt.Errorf("%w: %w", errStoreEnded, err))
			case <-ctx.Done():
			}
		}()
	}
	served := make(chan error, 1)
	go func() { served <- s.api.GenericAPIServer.PrepareRun().RunWithContext(ctx) }()
	defer context.AfterFunc(ctx, s.hangUp)()
	if err := s.bootstrap(ctx); err != nil {
		cancel(err)
		<-served
		if errors.Is(err, context.Canceled) && !errors.Is(context.Cause(ctx), errStoreEnded) {
			return nil
		}
		return fmt.Errorf("embedded API: %w", err)
	}
	defer s.deletions.start(ctx)()
	ready()
	if err := <-served; err != nil {
		return fmt.Errorf("embedded API: %w", err)
	}
	if cause := context.Cause(ctx); errors.Is(cause, errStoreEnded) {
		return cause
	}
	return nil
}

// hangUp closes every connection once the requests on them are answered. The server by itself would give idle clients a second to go,
// while nobody can connect any more.
func (s *Server) hangUp() {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		s.api.GenericAPIServer.NonLongRunningRequestWaitGroup.Wait()
	}()
	select {
	case <-answered:
		time.Sleep(sendTime)
	case <-time.After(shutdownTimeout):
	}
	s.listener.hangUp()
}

func (s *Server) close() {
	if s.listener != nil {
		s.listener.Close()
	}
	if s.store != nil {
		s.store.stop()
	}
	if s.unlock != nil {
		s.unlock()
	}
}

func (s *Server) build() error {
	cfg := genericapiserver.NewRecommendedConfig(apiextensions.Codecs)
	run := genericoptions.NewServerRunOptions()
	if err := run.Complete(); err != nil {
		return err
	}
	if err := run.ApplyTo(&cfg.Config); err != nil {
		return err
	}
	cfg.EffectiveVersion = served{cfg.EffectiveVersion}
	cfg.ShutdownWatchTerminationGracePeriod = watchGrace
	etcd := s.etcdOptions()
	if err := etcd.ApplyTo(&cfg.Config); err != nil {
		return err
	}
	if err := s.applyServing(&cfg.Config); err != nil {
		return err
	}
	if err := s.applyAccess(&cfg.Config); err != nil {
		return err
	}
	enablement := genericoptions.NewAPIEnablementOptions()
	if err := enablement.ApplyTo(&cfg.Config, apiextensions.DefaultAPIResourceConfigSource(), apiextensions.Scheme); err != nil {
		return err
	}
	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(allDefinitions)
	namer := openapinamer.NewDefinitionNamer(apiextensions.Scheme, scheme.Scheme)
	cfg.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	cfg.OpenAPIConfig.Info.Title = "Ebb"
	cfg.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	cfg.OpenAPIV3Config.Info.Title = "Ebb"

	roots := &discovery{groups: aggregated.NewResourceManager("apis")}
	cfg.AggregatedDiscoveryGroupManager = roots.groups
	full := apiextensions.Config{
		GenericConfig: cfg,
		ExtraConfig: apiextensions.ExtraConfig{
			CRDRESTOptionsGetter: patientKinds{options.NewCRDRESTOptionsGetter(*etcd, cfg.ResourceTransformers, cfg.StorageObjectCountTracker)},
			MasterCount:          1,
			ServiceResolver:      noServices{},
			AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, cfg.LoopbackClientConfig, noopoteltrace.NewTracerProvider()),
		},
	}
	api, err := full.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(roots.handler()))
	if err != nil {
		return err
	}
	api.GenericAPIServer.ShutdownTimeout = shutdownTimeout
	roots.crds = api.Informers.Apiextensions().V1().CustomResourceDefinitions().Lister()
	s.api = api
	if s.deletions, err = newDeletions(s.config, roots.crds); err != nil {
		return err
	}
	if err := s.installCore(etcd, roots); err != nil {
		return err
	}
	return api.GenericAPIServer.AddPostStartHook("start-ebb-namespaces", s.namespaces.start)
}

// installCore adds the built-in API to the server of custom resources.
func (s *Server) installCore(etcd *genericoptions.EtcdOptions, roots *discovery) error {
	secrets, err := secretsTransformer(s.opts.Dir.PKI())
	if err != nil {
		return err
	}
	c := core.Config{
		Etcd: *etcd, Secrets: secrets, EventTTL: cmp.Or(s.opts.EventTTL, DefaultEventTTL),
		Authorizer: authorizer.AuthorizerFunc(s.policy.authorize), Rules: rulesOf{roots, s.policy},
	}
	return c.Install(s.api.GenericAPIServer)
}

// allDefinitions describe every type that is not a custom resource.
func allDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := generatedopenapi.GetOpenAPIDefinitions(ref)
	maps.Copy(all, core.Definitions(ref))
	return all
}

func (s *Server) etcdOptions() *genericoptions.EtcdOptions {
	codec := apiextensions.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)
	etcd := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig(s.opts.EtcdPrefix, codec))
	etcd.StorageConfig.Transport.ServerList = s.opts.EtcdServers
	etcd.StorageConfig.Transport.TrustedCAFile = s.opts.EtcdCAFile
	etcd.StorageConfig.Transport.CertFile = s.opts.EtcdCertFile
	etcd.StorageConfig.Transport.KeyFile = s.opts.EtcdKeyFile
	if s.store != nil {
		etcd.StorageConfig.Transport.ServerList = []string{s.store.endpoint}
	}
	return etcd
}

func (s *Server) applyServing(cfg *genericapiserver.Config) error {
	host, _, err := net.SplitHostPort(s.listener.Addr().String())
	if err != nil {
		return err
	}
	hosts := append([]string{"localhost", "127.0.0.1", "::1", host}, s.opts.Advertise...)
	pair, err := s.ca.Issue(pki.Profile{User: "ebb-apiserver", Hosts: hosts})
	if err != nil {
		return err
	}
	serving := genericoptions.NewSecureServingOptions().WithLoopback()
	serving.Listener = s.listener
	serving.BindPort = s.listener.Addr().(*net.TCPAddr).Port
	if serving.ServerCert.GeneratedCert, err = dynamiccertificates.NewStaticCertKeyContent("ebb-apiserver", pair.Cert, pair.Key); err != nil {
		return err
	}
	if err := serving.ApplyToConfig(cfg); err != nil {
		return err
	}
	// The loopback client uses the same wire format as everyone: custom resources speak JSON only.
	s.config = rest.CopyConfig(cfg.LoopbackClientConfig)
	s.config.ContentType, s.config.AcceptContentTypes = "application/json", "application/json"
	s.config.QPS = -1
	cfg.PublicAddress = net.ParseIP(host)
	return nil
}

func (s *Server) applyAccess(cfg *genericapiserver.Config) error {
	elections, err := coordinationclient.NewForConfig(s.config)
	if err != nil {
		return err
	}
	s.leases = elections.Leases(lease.Namespace)
	if s.objects, err = kubeclient.New(s.config); err != nil {
		return err
	}

	trusted, err := dynamiccertificates.NewStaticCAContent("ebb cluster CA", s.ca.CertPEM)
	if err != nil {
		return err
	}
	cfg.SecureServing.ClientCA = trusted
	certificates := x509request.NewDynamic(func() (x509.VerifyOptions, bool) { return trusted.VerifyOptions() }, x509request.CommonNameUserConversion)
	cfg.Authentication.Authenticator = group.NewAuthenticatedGroupAdder(certificates)
	cfg.Authorization.Authorizer = authorizer.AuthorizerFunc(s.policy.authorize)
	if s.namespaces, err = s.newNamespaces(); err != nil {
		return err
	}
	cfg.AdmissionControl = admission.NewChainHandler(
		&rules{policy: s.policy, readLease: s.readLease, readSlot: s.readSlot, readNode: s.readNode, ownTypes: namesOf(s.crds), usable: s.usable.Load}, s.namespaces.lifecycle)
	cfg.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return withProbes(api, genericapiserver.DefaultBuildHandlerChain(s.served.keep(withTerm(api)), c))
	}
	return nil
}

// readLease reads a Lease live, from the store rather than from a cache; nil means that there is none.
func (s *Server) readLease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	l, err := s.leases.Get(ctx, name, metav1.GetOptions{})
	if kubeclient.IsMissing(err) {
		return nil, nil
	}
	return l, err
}

// readSlot reads the drain slot live.
func (s *Server) readSlot(ctx context.Context) (*v1alpha1.ActiveDrain, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	settings := &v1alpha1.Settings{}
	err := s.objects.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings)
	if kubeclient.IsMissing(err) {
		return nil, nil
	}
	return settings.Status.ActiveDrain, err
}

// readNode reads a Node, from the server's cache where that is enough.
func (s *Server) readNode(ctx context.Context, name string, cached bool) (*v1alpha1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	o := &client.GetOptions{}
	if cached {
		o.Raw = &metav1.GetOptions{ResourceVersion: "0"}
	}
	n := &v1alpha1.Node{}
	err := s.objects.Get(ctx, types.NamespacedName{Name: name}, n, o)
	if kubeclient.IsMissing(err) {
		return n, nil
	}
	return n, err
}

// noServices refuses to resolve services: there are none, and no conversion webhook is ever called.
type noServices struct{}

// ResolveEndpoint implements webhook.ServiceResolver.
func (noServices) ResolveEndpoint(namespace, name string, _ int32) (*url.URL, error) {
	return nil, fmt.Errorf("service %s/%s: the embedded API has no services", namespace, name)
}
