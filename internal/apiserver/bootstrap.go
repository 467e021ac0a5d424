package apiserver

import (
	"context"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/config"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

const (
	bootstrapTimeout = 5 * time.Minute // a machine that is busy starting everything else is slow, not broken
	bootstrapPoll    = 20 * time.Millisecond
)

// bootstrap creates in a newly started server the types of Ebb, the namespaces, the Settings and the credentials. Every step can be
// repeated, so that a server that was killed in the middle continues at its next start.
func (s *Server) bootstrap(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bootstrapTimeout, errBootstrapSlow)
	defer cancel()
	typed, err := crdclient.NewForConfig(s.config)
	if err != nil {
		return err
	}
	if err := s.awaitLeases(ctx); err != nil {
		return err
	}
	s.served.open()
	for _, crd := range s.crds {
		if err := install(ctx, typed.CustomResourceDefinitions(), crd); err != nil {
			return fmt.Errorf("install %s: %w", crd.Name, err)
		}
	}
	for _, crd := range s.crds {
		if err := awaitEstablished(ctx, typed.CustomResourceDefinitions(), crd.Name); err != nil {
			return fmt.Errorf("wait for %s: %w", crd.Name, err)
		}
	}
	if s.store != nil {
		for _, crd := range s.crds {
			if err := skipCreationDelay(ctx, typed.CustomResourceDefinitions(), crd.Name); err != nil {
				return fmt.Errorf("wait for %s: %w", crd.Name, err)
			}
		}
	}
	if err := s.awaitUsable(ctx, typed.RESTClient()); err != nil {
		return err
	}
	if err := removeBroughtEvents(ctx, typed.CustomResourceDefinitions()); err != nil {
		return fmt.Errorf("remove %s: %w", broughtEvents, err)
	}
	if err := s.createNamespaces(ctx, typed.CustomResourceDefinitions()); err != nil {
		return err
	}
	c, err := kubeclient.New(s.config)
	if err != nil {
		return err
	}
	if err := createSettings(ctx, c); err != nil {
		return fmt.Errorf("create Settings %s: %w", v1alpha1.SettingsName, err)
	}
	return s.opts.Dir.IssueCluster(s.ca, s.URL())
}

func allCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	own, err := config.CRDs()
	if err != nil {
		return nil, err
	}
	brought, err := config.EmbeddedCRDs()
	if err != nil {
		return nil, err
	}
	return append(own, brought...), nil
}

func namesOf(crds []*apiextensionsv1.CustomResourceDefinition) sets.Set[string] {
	names := sets.New[string]()
	for _, crd := range crds {
		names.Insert(crd.Name)
	}
	return names
}

// install creates a definition, or brings an older one up to date.
func install(ctx context.Context, crds crdclient.CustomResourceDefinitionInterface, want *apiextensionsv1.CustomResourceDefinition) error {
	return retry(ctx, func(ctx context.Context) (bool, error) {
		have, err := crds.Get(ctx, want.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err := crds.Create(ctx, want, metav1.CreateOptions{})
			return err == nil, err
		}
		if err != nil {
			return false, err
		}
		next := have.DeepCopy()
		next.Spec = *want.Spec.DeepCopy()
		next.Spec.Conversion = have.Spec.Conversion
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&next.Spec)
		if equality.Semantic.DeepEqual(have.Spec, next.Spec) {
			return true, nil
		}
		_, err = crds.Update(ctx, next, metav1.UpdateOptions{})
		return err == nil, err
	})
}

func awaitEstablished(ctx context.Context, crds crdclient.CustomResourceDefinitionInterface, name string) error {
	return retry(ctx, func(ctx context.Context) (bool, error) {
		crd, err := crds.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		e := established(crd)
		return e != nil && e.Status == apiextensionsv1.ConditionTrue, nil
	})
}

func established(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinitionCondition {
	at := slices.IndexFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established
	})
	if at < 0 {
		return nil
	}
	return &crd.Status.Conditions[at]
}

// creationDelay is how long the server holds up the creation of objects of a definition that was established less than that ago, so
// that other API servers on the same store learn of the definition first.
const creationDelay = 2 * time.Second

// skipCreationDelay dates the establishment of a definition back, so that the first start need not wait: there is no other server on an
// embedded store.
func skipCreationDelay(ctx context.Context, crds crdclient.CustomResourceDefinitionInterface, name string) error {
	return retry(ctx, func(ctx context.Context) (bool, error) {
		crd, err := crds.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		e := established(crd)
		if e == nil || time.Since(e.LastTransitionTime.Time) > creationDelay {
			return e != nil, nil
		}
		e.LastTransitionTime = metav1.NewTime(e.LastTransitionTime.Add(-creationDelay - time.Second))
		_, err = crds.UpdateStatus(ctx, crd, metav1.UpdateOptions{})
		return err == nil, err
	})
}

// awaitUsable lists every kind until the server answers: the first request makes the server fill the cache of the kind, and until
// that is done it refuses all of them.
func (s *Server) awaitUsable(ctx context.Context, c rest.Interface) error {
	waiting := []string{"/api/v1/namespaces", "/api/v1/secrets", "/api/v1/configmaps", "/api/v1/events"}
	for _, crd := range s.crds {
		waiting = append(waiting, "/apis/"+crd.Spec.Group+"/"+crd.Spec.Versions[0].Name+"/"+crd.Spec.Names.Plural)
	}
	return retry(ctx, func(ctx context.Context) (bool, error) {
		var last error
		waiting = slices.DeleteFunc(waiting, func(path string) bool {
			err := c.Get().AbsPath(path).Param("fieldSelector", "metadata.name=none").MaxRetries(0).Do(ctx).Error()
			if err != nil {
				last = fmt.Errorf("wait for %s: %w", path, err)
			}
			return err == nil
		})
		return len(waiting) == 0, last
	})
}

// broughtEvents is the custom resource of Events in stores from before the core group.
const broughtEvents = "events." + groupEvents

// removeBroughtEvents removes that type from an old store: the core group serves the same requests now. Its Events would have expired
// within an hour.
func removeBroughtEvents(ctx context.Context, crds crdclient.CustomResourceDefinitionInterface) error {
	return retry(ctx, func(ctx context.Context) (bool, error) {
		err := crds.Delete(ctx, broughtEvents, metav1.DeleteOptions{})
		return err == nil || apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

func (s *Server) createNamespaces(ctx context.Context, crds crdclient.CustomResourceDefinitionInterface) error {
	err := retry(ctx, func(ctx context.Context) (bool, error) {
		err := s.namespaces.create(ctx, crds)
		return err == nil, err
	})
	if err == nil {
		s.usable.Store(true)
	}
	return err
}

func createSettings(ctx context.Context, c client.Client) error {
	return retry(ctx, func(ctx context.Context) (bool, error) {
		settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
		err := c.Create(ctx, settings)
		return err == nil || apierrors.IsAlreadyExists(err), client.IgnoreAlreadyExists(err)
	})
}

// retry calls step until it succeeds. While the server starts, any error may be temporary; after the timeout the last one is returned.
func retry(ctx context.Context, step func(context.Context) (bool, error)) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, bootstrapPoll, true, func(ctx context.Context) (bool, error) {
		done, err := step(ctx)
		if err != nil && ctx.Err() == nil { // that time is up says nothing about what was wrong
			last = err
		}
		return done, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("%w (last: %w)", context.Cause(ctx), last)
	}
	return err
}
