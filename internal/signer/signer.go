package signer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/pki"
)

// Objects that the signer keeps in the namespace of Ebb.
const (
	// AuthorityName is the Secret with the key of the certificate authority, which the signer alone reads, and the ConfigMap with its certificate.
	AuthorityName = "ebb-ca"
	// TokenName is the Secret with the bearer token of /api/v2.
	TokenName = "ebb-api"
	// HealthTokenName is the Secret with the bearer token that may only send health events.
	HealthTokenName = "ebb-health-events"

	authorityKey = "ca.crt"
	tokenKey     = "token"

	// termEvery is how often the signer looks whether there is a Term.
	termEvery = 5 * time.Second
)

// Options make a signer.
type Options struct {
	// Config reaches the API as the signer.
	Config *rest.Config
	// Namespace of Ebb.
	Namespace string
	// User is who nodes are to the API: their service account.
	User string
	// Life of a certificate.
	Life time.Duration
	// Log of the signer.
	Log *slog.Logger
}

// Signer approves and signs the requests of nodes.
type Signer struct {
	opts Options
	kube kubernetes.Interface
	ca   *pki.Authority
	// objects reaches those of Ebb.
	objects client.Client
}

// New makes a signer, with what is missing of the objects that it keeps: the authority, the bearer token and the Term.
func New(ctx context.Context, o Options) (*Signer, error) {
	kube, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, err
	}
	s := &Signer{opts: o, kube: kube}
	if s.ca, err = s.authority(ctx); err != nil {
		return nil, err
	}
	if err := s.publishAuthority(ctx); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	if err := s.ensureTokens(ctx); err != nil {
		return nil, fmt.Errorf("bearer token: %w", err)
	}
	// The policies refuse every write of a node while there is no Term, and nodes may not create it.
	objects, err := kubeclient.New(o.Config)
	if err != nil {
		return nil, err
	}
	s.objects = objects
	return s, s.ensureTerm(ctx)
}

// ensureTerm creates the Term if there is none. The policies refuse every write of a node without one, also the renewals of leases.
func (s *Signer) ensureTerm(ctx context.Context) error {
	term := &v1alpha1.Term{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.TermName}}
	err := s.objects.Get(ctx, client.ObjectKeyFromObject(term), term)
	if !kubeclient.IsMissing(err) {
		return err
	}
	s.opts.Log.Info("creating the Term, which names the coordinator", "term", v1alpha1.TermName)
	return client.IgnoreAlreadyExists(s.objects.Create(ctx, term))
}

// keepTerm creates the Term again when somebody has deleted it, until ctx ends.
func (s *Signer) keepTerm(ctx context.Context) {
	for backoff.Sleep(ctx, termEvery) == nil {
		if err := s.ensureTerm(ctx); err != nil && ctx.Err() == nil {
			s.opts.Log.Warn("could not create the Term; trying again", "error", err)
		}
	}
}

// authority reads the key of the authority, or makes one. Of two signers that start at once one makes it.
func (s *Signer) authority(ctx context.Context) (*pki.Authority, error) {
	secrets := s.kube.CoreV1().Secrets(s.opts.Namespace)
	secret, err := secrets.Get(ctx, AuthorityName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		pair, err := pki.NewAuthority()
		if err != nil {
			return nil, err
		}
		made := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: AuthorityName}, Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: pair.Cert, corev1.TLSPrivateKeyKey: pair.Key},
		}
		if secret, err = secrets.Create(ctx, made, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			secret, err = secrets.Get(ctx, AuthorityName, metav1.GetOptions{})
		}
		if err != nil {
			return nil, err
		}
		s.opts.Log.Info("have the certificate authority", "secret", s.opts.Namespace+"/"+AuthorityName)
	} else if err != nil {
		return nil, err
	}
	return pki.Parse("Secret "+s.opts.Namespace+"/"+AuthorityName, pki.Pair{Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]})
}

// publishAuthority writes the authority's certificate where nodes and people find it.
func (s *Signer) publishAuthority(ctx context.Context) error {
	maps := s.kube.CoreV1().ConfigMaps(s.opts.Namespace)
	want := map[string]string{authorityKey: string(s.ca.CertPEM)}
	_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: AuthorityName}, Data: want}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	current, err := maps.Get(ctx, AuthorityName, metav1.GetOptions{})
	if err != nil || current.Data[authorityKey] == want[authorityKey] {
		return err
	}
	current.Data = want
	_, err = maps.Update(ctx, current, metav1.UpdateOptions{})
	return err
}

// ensureTokens creates the tokens that do not exist. Nodes wait for the second one, and by then the first is there.
func (s *Signer) ensureTokens(ctx context.Context) error {
	for _, name := range []string{HealthTokenName, TokenName} {
		if err := s.ensureToken(ctx, name); err != nil {
			return fmt.Errorf("secret %s: %w", name, err)
		}
	}
	return nil
}

func (s *Signer) ensureToken(ctx context.Context, name string) error {
	secrets := s.kube.CoreV1().Secrets(s.opts.Namespace)
	if _, err := secrets.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return err
	}
	made := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{tokenKey: []byte(hex.EncodeToString(raw))}}
	_, err := secrets.Create(ctx, made, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Run signs requests until ctx ends.
func (s *Signer) Run(ctx context.Context) error {
	list := cache.NewListWatchFromClient(s.kube.CertificatesV1().RESTClient(), "certificatesigningrequests", metav1.NamespaceAll, fields.Everything())
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	defer queue.ShutDown()
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	add := func(object any) {
		if csr, ok := object.(*certificatesv1.CertificateSigningRequest); ok && (csr.Spec.SignerName == SignerName || csr.Spec.SignerName == ClientSignerName) {
			queue.Add(csr.Name)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: list, ObjectType: &certificatesv1.CertificateSigningRequest{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, next any) { add(next) }},
	})
	go s.keepTerm(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		informer.RunWithContext(ctx)
	}()
	for {
		name, ended := queue.Get()
		if ended {
			<-watched
			return nil
		}
		if err := s.settle(ctx, name); err != nil && ctx.Err() == nil {
			s.opts.Log.Warn("could not settle a signing request; trying again", "request", name, "error", err)
			queue.AddRateLimited(name)
		} else {
			queue.Forget(name)
		}
		queue.Done(name)
	}
}

// settle approves and signs one request, or denies it. It reads live, and every write is over the version that was read.
func (s *Signer) settle(ctx context.Context, name string) error {
	requests := s.kube.CertificatesV1().CertificateSigningRequests()
	csr, err := requests.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (len(csr.Status.Certificate) > 0 || has(csr, certificatesv1.CertificateDenied) || has(csr, certificatesv1.CertificateFailed)) {
		return nil
	}
	if err != nil {
		return err
	}
	if csr.Spec.SignerName == ClientSignerName {
		return s.settleClient(ctx, csr)
	}
	addresses, err := s.addresses(ctx, csr)
	if err != nil {
		return err
	}
	request, refused := judge(csr, s.opts.User, addresses)
	if refused != nil {
		s.opts.Log.Warn("denied a signing request", "request", name, "user", csr.Spec.Username, "reason", refused)
		return s.conclude(ctx, csr, certificatesv1.CertificateDenied, "NotANode", refused.Error())
	}
	if !has(csr, certificatesv1.CertificateApproved) {
		if err := s.conclude(ctx, csr, certificatesv1.CertificateApproved, "Node", "The token of the requester is bound to a pod on this node."); err != nil {
			return err
		}
		if csr, err = requests.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	if csr.Status.Certificate, err = s.ca.Sign(request, s.life(csr)); err != nil {
		return err
	}
	if _, err := requests.UpdateStatus(ctx, csr, metav1.UpdateOptions{}); err != nil {
		return err
	}
	s.opts.Log.Info("signed the certificate of a node", "node", csr.Spec.Extra[NodeClaim][0], "request", name)
	return nil
}

// settleClient signs a person's request once a person has approved it.
func (s *Signer) settleClient(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	if !has(csr, certificatesv1.CertificateApproved) {
		return nil
	}
	request, err := judgeClient(csr)
	if err != nil {
		s.opts.Log.Warn("refused to sign an approved request", "request", csr.Name, "user", csr.Spec.Username, "reason", err)
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "NotAClient", Message: err.Error(),
		})
	} else if csr.Status.Certificate, err = s.ca.Sign(request, s.life(csr)); err != nil {
		return err
	}
	_, err = s.kube.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, csr, metav1.UpdateOptions{})
	return err
}

func (s *Signer) life(csr *certificatesv1.CertificateSigningRequest) time.Duration {
	if seconds := csr.Spec.ExpirationSeconds; seconds != nil {
		return min(s.opts.Life, time.Duration(*seconds)*time.Second)
	}
	return s.opts.Life
}

func (s *Signer) conclude(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, how certificatesv1.RequestConditionType, reason, message string) error {
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: how, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
	_, err := s.kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
	return err
}

func has(csr *certificatesv1.CertificateSigningRequest, how certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == how })
}

// addresses are those of the pod that made a request, as the API server knows them. A pod that is gone has none.
func (s *Signer) addresses(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) ([]string, error) {
	name, err := claim(csr, PodClaim)
	if err != nil {
		return nil, nil
	}
	pod, err := s.kube.CoreV1().Pods(s.opts.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []string
	for _, ip := range pod.Status.PodIPs {
		list = append(list, ip.IP)
	}
	return list, nil
}

// Validate refuses options that would only fail later.
func (o Options) Validate() error {
	if o.Life < time.Minute {
		return errors.New("--certificate-life: certificates last at least a minute")
	}
	return nil
}

// Token reads the bearer token of an installation, and whether there is one.
func Token(ctx context.Context, kube kubernetes.Interface, namespace string) (token string, installed bool, err error) {
	secret, err := kube.CoreV1().Secrets(namespace).Get(ctx, TokenName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("bearer token: %w", err)
	}
	return string(secret.Data[tokenKey]), true, nil
}

// Authority reads the certificate of an installation's authority, and whether there is one.
func Authority(ctx context.Context, kube kubernetes.Interface, namespace string) (cert []byte, installed bool, err error) {
	published, err := kube.CoreV1().ConfigMaps(namespace).Get(ctx, AuthorityName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("certificate authority: %w", err)
	}
	return []byte(published.Data[authorityKey]), true, nil
}
