package manifests

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/signer"
)

func meta(o Options, name, ns string) metav1.ObjectMeta {
	labels := map[string]string{"app.kubernetes.io/name": "ebb"}
	if o.Version != "" {
		labels["app.kubernetes.io/version"] = o.Version
	}
	return metav1.ObjectMeta{Name: name, Namespace: ns, Labels: labels}
}

func namespace(o Options) runtime.Object {
	ns := &corev1.Namespace{TypeMeta: typed("v1", "Namespace"), ObjectMeta: meta(o, Namespace, "")}
	// The init container runs as root, to hand a directory of the host to the node's user.
	ns.Labels["pod-security.kubernetes.io/enforce"] = "privileged"
	return ns
}

func typed(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

const (
	rbacVersion = "rbac.authorization.k8s.io/v1"
	groupEbb    = "ebb.dev"
)

var (
	reading  = []string{"get", "list", "watch"}
	changing = []string{"update"}
)

func rbac(o Options) []runtime.Object {
	return slices.Concat(
		account(o, NodeAccount, nodeClusterRules(o.Objects), nodeRules()),
		account(o, SignerAccount, signerClusterRules(), signerRules()),
		[]runtime.Object{&rbacv1.ClusterRole{
			TypeMeta: typed(rbacVersion, "ClusterRole"), ObjectMeta: meta(o, SecretReader, ""),
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}}},
		}, reporter(o)},
	)
}

// account is a service account with what it may do in the cluster and in the namespace of Ebb.
func account(o Options, name string, cluster, own []rbacv1.PolicyRule) []runtime.Object {
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: Namespace}}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: kind, Name: name}
	}
	return []runtime.Object{
		&corev1.ServiceAccount{TypeMeta: typed("v1", "ServiceAccount"), ObjectMeta: meta(o, name, Namespace)},
		&rbacv1.ClusterRole{TypeMeta: typed(rbacVersion, "ClusterRole"), ObjectMeta: meta(o, name, ""), Rules: cluster},
		&rbacv1.ClusterRoleBinding{TypeMeta: typed(rbacVersion, "ClusterRoleBinding"), ObjectMeta: meta(o, name, ""), RoleRef: ref("ClusterRole"), Subjects: subjects},
		&rbacv1.Role{TypeMeta: typed(rbacVersion, "Role"), ObjectMeta: meta(o, name, Namespace), Rules: own},
		&rbacv1.RoleBinding{TypeMeta: typed(rbacVersion, "RoleBinding"), ObjectMeta: meta(o, name, Namespace), RoleRef: ref("Role"), Subjects: subjects},
	}
}

func rule(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
}

// nodeClusterRules are what nodes and the coordinator write together, since they share the account. The policies tell them apart.
func nodeClusterRules(objects []access.Object) []rbacv1.PolicyRule {
	read := []string{"nodes", "drains", "settings", "terms"}
	var updated, claimed, made []string
	for _, object := range objects {
		read = append(read, object.Resource)
		updated = append(updated, object.Resource, object.Resource+"/status")
		if object.Node != nil && object.Node.Check != nil {
			claimed = append(claimed, object.Resource, object.Resource+"/status")
		}
		if object.Coordinator == access.Both {
			made = append(made, object.Resource)
		}
	}
	rules := []rbacv1.PolicyRule{
		rule(groupEbb, reading, read...),
		rule(groupEbb, []string{"create", "update", "delete"}, "nodes"),
		rule(groupEbb, changing, "nodes/status", "drains/status", "settings/status"),
		rule(groupEbb, []string{"create", "update", "delete"}, "drains"),
		rule(groupEbb, []string{"create"}, "settings", "terms"),
		{APIGroups: []string{groupEbb}, Resources: []string{"terms"}, ResourceNames: []string{v1alpha1.TermName}, Verbs: []string{"update"}},
		rule(groupEbb, changing, updated...),
	}
	if len(claimed) > 0 {
		rules = append(rules, rule(groupEbb, []string{"patch"}, claimed...))
	}
	if len(made) > 0 {
		rules = append(rules, rule(groupEbb, []string{"create", "delete"}, made...))
	}
	return append(rules,
		rule("", []string{"get", "list", "watch", "update"}, "nodes"),            // cordons
		rule("", []string{"get", "list", "watch", "delete"}, "pods"),             // pods of nodes that drain
		rule("", []string{"create"}, "pods/eviction"),                            // the same
		rule("policy", []string{"get", "list", "watch"}, "poddisruptionbudgets"), // what evictions wait for
		rule("events.k8s.io", []string{"create"}, "events"),
		rule("certificates.k8s.io", []string{"create", "get"}, "certificatesigningrequests"),
	)
}

// nodeRules are what nodes may do in the namespace of Ebb.
func nodeRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("coordination.k8s.io", []string{"get", "list", "watch", "create", "update"}, "leases"),
		rule("", []string{"get", "list", "watch", "create", "delete"}, "pods"), // guards
		rule("policy", []string{"get", "list", "watch", "create", "delete"}, "poddisruptionbudgets"),
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{signer.AuthorityName}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{signer.TokenName, signer.HealthTokenName}, Verbs: []string{"get"}},
	}
}

func signerClusterRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("certificates.k8s.io", reading, "certificatesigningrequests"),
		rule("certificates.k8s.io", []string{"update"}, "certificatesigningrequests/approval", "certificatesigningrequests/status"),
		{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{signer.SignerName}, Verbs: []string{"approve", "sign"}},
		{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{signer.ClientSignerName}, Verbs: []string{"sign"}},
		rule(groupEbb, []string{"create", "get"}, "terms"),
	}
}

func signerRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("", []string{"create"}, "secrets", "configmaps"),
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{signer.AuthorityName, signer.TokenName, signer.HealthTokenName}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{signer.AuthorityName}, Verbs: []string{"get", "update"}},
		rule("", []string{"get"}, "pods"),
	}
}
