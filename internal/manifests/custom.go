package manifests

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/signer"
)

const (
	// CustomDrainRole is the name of the roles that a custom drain needs, of their bindings and of the policy.
	CustomDrainRole = "ebb-custom-drain"
	// ReporterRole is the Role that an administrator binds to whoever sends health events: it reads the token for them.
	ReporterRole = "ebb-health-reporter"
)

// CustomDrain are the resources that the coordinator creates for custom drains.
type CustomDrain struct {
	// Group and Resource of the resources; Resource is in the plural.
	Group, Resource string
	// Namespace of the resources; empty if their kind has none.
	Namespace string
}

// customDrain is what the account of the nodes needs for a custom drain. Nodes and the coordinator share it; a policy lets only the
// coordinator write.
func customDrain(o Options) []runtime.Object {
	c := o.CustomDrain
	if c == nil {
		return nil
	}
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Name: NodeAccount, Namespace: Namespace}}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: kind, Name: CustomDrainRole}
	}
	resources := []rbacv1.PolicyRule{
		rule(c.Group, []string{"get", "list", "watch", "create", "delete"}, c.Resource),
		rule(c.Group, changing, c.Resource+"/status"),
	}
	cluster := []rbacv1.PolicyRule{rule("", []string{"list"}, "pods")} // what the template gets as PodsToDrain
	var objects []runtime.Object
	if c.Namespace == "" {
		cluster = append(cluster, resources...)
	} else {
		objects = append(objects,
			&rbacv1.Role{TypeMeta: typed(rbacVersion, "Role"), ObjectMeta: meta(o, CustomDrainRole, c.Namespace), Rules: resources},
			&rbacv1.RoleBinding{TypeMeta: typed(rbacVersion, "RoleBinding"), ObjectMeta: meta(o, CustomDrainRole, c.Namespace), RoleRef: ref("Role"), Subjects: subjects})
	}
	p := policy{
		name: CustomDrainRole, group: c.Group, resource: c.Resource, namespace: c.Namespace, lenient: true,
		mine: []access.Rule{{Expression: "false", Message: "only the coordinator may do this"}},
	}
	return append(objects,
		&rbacv1.ClusterRole{TypeMeta: typed(rbacVersion, "ClusterRole"), ObjectMeta: meta(o, CustomDrainRole, ""), Rules: cluster},
		&rbacv1.ClusterRoleBinding{TypeMeta: typed(rbacVersion, "ClusterRoleBinding"), ObjectMeta: meta(o, CustomDrainRole, ""), RoleRef: ref("ClusterRole"), Subjects: subjects},
		p.build(o), p.binding(o))
}

// reporter is the Role that reads the token for health events. It is bound to nobody.
func reporter(o Options) runtime.Object {
	return &rbacv1.Role{
		TypeMeta: typed(rbacVersion, "Role"), ObjectMeta: meta(o, ReporterRole, Namespace),
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{signer.HealthTokenName}, Verbs: []string{"get"}},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{signer.AuthorityName}, Verbs: []string{"get"}},
		},
	}
}
