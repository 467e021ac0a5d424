package core

import (
	"context"
	"errors"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// review is a request that is answered and not stored.
type review struct {
	singular string
	empty    func() runtime.Object
	answer   func(context.Context, user.Info, runtime.Object) error
}

// New implements rest.Storage.
func (r review) New() runtime.Object { return r.empty() }

// Destroy implements rest.Storage.
func (r review) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (r review) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (r review) GetSingularName() string { return r.singular }

// Create implements rest.Creater.
func (r review) Create(ctx context.Context, o runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("the request has no user")
	}
	if validate != nil {
		if err := validate(ctx, o.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	return o, r.answer(ctx, who, o)
}

// selfReview answers `kubectl auth whoami`.
func selfReview() review {
	return review{
		singular: "selfsubjectreview",
		empty:    func() runtime.Object { return &authenticationv1.SelfSubjectReview{} },
		answer: func(_ context.Context, who user.Info, o runtime.Object) error {
			extra := map[string]authenticationv1.ExtraValue{}
			for key, values := range who.GetExtra() {
				extra[key] = values
			}
			o.(*authenticationv1.SelfSubjectReview).Status.UserInfo = authenticationv1.UserInfo{
				Username: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: extra,
			}
			return nil
		},
	}
}

// accessReview answers `kubectl auth can-i`.
func accessReview(a authorizer.Authorizer) review {
	return review{
		singular: "selfsubjectaccessreview",
		empty:    func() runtime.Object { return &authorizationv1.SelfSubjectAccessReview{} },
		answer: func(ctx context.Context, who user.Info, o runtime.Object) error {
			r := o.(*authorizationv1.SelfSubjectAccessReview)
			attributes, err := attributesOf(who, r.Spec)
			if err != nil {
				return apierrors.NewBadRequest(err.Error())
			}
			decision, reason, err := a.Authorize(ctx, attributes)
			r.Status = authorizationv1.SubjectAccessReviewStatus{
				Allowed: decision == authorizer.DecisionAllow, Denied: decision == authorizer.DecisionDeny, Reason: reason,
			}
			if err != nil {
				r.Status.EvaluationError = err.Error()
			}
			return nil
		},
	}
}

func attributesOf(who user.Info, spec authorizationv1.SelfSubjectAccessReviewSpec) (authorizer.AttributesRecord, error) {
	a := authorizer.AttributesRecord{User: who}
	switch on, path := spec.ResourceAttributes, spec.NonResourceAttributes; {
	case (on == nil) == (path == nil):
		return a, errors.New("set either spec.resourceAttributes or spec.nonResourceAttributes")
	case path != nil:
		a.Verb, a.Path = path.Verb, path.Path
	default:
		a.ResourceRequest = true
		a.Verb, a.Namespace, a.APIGroup, a.APIVersion, a.Resource, a.Subresource, a.Name =
			on.Verb, on.Namespace, on.Group, on.Version, on.Resource, on.Subresource, on.Name
	}
	return a, nil
}

// rulesReview answers `kubectl auth can-i --list`.
func rulesReview(rules authorizer.RuleResolver) review {
	return review{
		singular: "selfsubjectrulesreview",
		empty:    func() runtime.Object { return &authorizationv1.SelfSubjectRulesReview{} },
		answer: func(ctx context.Context, who user.Info, o runtime.Object) error {
			r := o.(*authorizationv1.SelfSubjectRulesReview)
			if strings.TrimSpace(r.Spec.Namespace) == "" {
				return apierrors.NewBadRequest("set spec.namespace")
			}
			resources, paths, incomplete, err := rules.RulesFor(ctx, who, r.Spec.Namespace)
			if err != nil {
				r.Status.EvaluationError = err.Error()
			}
			r.Status.Incomplete = incomplete
			r.Status.ResourceRules, r.Status.NonResourceRules = []authorizationv1.ResourceRule{}, []authorizationv1.NonResourceRule{}
			for _, rule := range resources {
				r.Status.ResourceRules = append(r.Status.ResourceRules, authorizationv1.ResourceRule{
					Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(), ResourceNames: rule.GetResourceNames(),
				})
			}
			for _, rule := range paths {
				r.Status.NonResourceRules = append(r.Status.NonResourceRules, authorizationv1.NonResourceRule{
					Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs(),
				})
			}
			return nil
		},
	}
}
