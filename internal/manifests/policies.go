package manifests

import (
	"cmp"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/kube"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/signer"
)

const policyVersion = "admissionregistration.k8s.io/v1"

// policy is one ValidatingAdmissionPolicy about writes of nodes and of the coordinator. A coordinator's write passes the rules, unless they are
// for it too.
type policy struct {
	name, group, resource string
	// namespace of the objects, if it is not that of Ebb.
	namespace string
	// mine are the rules for a node that does not lead.
	mine []access.Rule
	// all are the rules for every writer with the account of nodes.
	all []access.Rule
	// anyTerm says that the policy does not look at the Term. The others refuse everything while there is none, whoever writes.
	anyTerm bool
	// lenient policies look at the Term, but allow everything while there is none: they are about objects that others than Ebb write too, and a
	// policy without its parameter would refuse everybody's writes.
	lenient bool
	// outside policies are about every namespace but Ebb's, and the others about Ebb's alone.
	outside bool
}

// policies refuse what RBAC cannot: it knows neither the node that a token is bound to nor which node leads.
func policies(o Options) []runtime.Object {
	leads := []access.Rule{{Expression: "false", Message: "only the coordinator may do this"}}
	list := []policy{
		{name: "ebb-nodes", group: groupEbb, resource: "nodes", mine: nodeObjectRules(), all: []access.Rule{
			{Expression: "request.operation != 'CREATE' || variables.name == variables.node", Message: "a node may create its own Node only"},
			{Expression: "request.operation != 'DELETE' || oldObject.metadata.?annotations[?'" + kube.CoreUIDAnnotation + "'].hasValue()", Message: "only Nodes that carry the UID of a core Node may be deleted"},
		}},
		{name: "ebb-drains", group: groupEbb, resource: "drains", mine: leads},
		{name: "ebb-settings", group: groupEbb, resource: "settings", mine: leads},
		{name: "ebb-terms", group: groupEbb, resource: "terms", anyTerm: true, all: []access.Rule{
			{Expression: "request.operation != 'DELETE' && variables.name == '" + v1alpha1.TermName + "' && object.?spec.?node.orValue('') == variables.node", Message: "a node may write only itself into the Term"},
		}},
		{name: "ebb-core-nodes", group: "", resource: "nodes", anyTerm: true, all: coreNodeRules()},
		{name: "ebb-core-nodes-term", group: "", resource: "nodes", lenient: true, mine: leads},
		{name: "ebb-guards", group: "", resource: "pods", anyTerm: true, all: guardRules()},
		{name: "ebb-guards-term", group: "", resource: "pods", lenient: true, mine: leads},
		{name: "ebb-budgets", group: "policy", resource: "poddisruptionbudgets", anyTerm: true, all: guardNames()},
		{name: "ebb-budgets-term", group: "policy", resource: "poddisruptionbudgets", lenient: true, mine: leads},
		{name: "ebb-pods", group: "", resource: "pods", anyTerm: true, outside: true, all: podRules(o)},
		{name: "ebb-pods-term", group: "", resource: "pods", lenient: true, outside: true, mine: leads},
		{name: "ebb-leases", group: "coordination.k8s.io", resource: "leases", all: electionRules(), mine: leaseRules()},
	}
	for _, object := range o.Objects {
		list = append(list, policy{name: "ebb-" + object.Resource, group: groupEbb, resource: object.Resource, mine: workRules(object)})
	}
	var objects []runtime.Object
	for _, p := range list {
		objects = append(objects, p.build(o), p.binding(o))
	}
	return append(objects, invariants(o)...)
}

// nodeObjectRules: a node creates its own Node, and writes its status and labels.
func nodeObjectRules() []access.Rule {
	return []access.Rule{
		{Expression: "request.operation != 'DELETE' && object.metadata.name == variables.node", Message: "a node may write its own Node only"},
		{Expression: "variables.status || (request.operation == 'CREATE' ? object.?spec.orValue({}).size() == 0 : " + sameNodeSpec + ")", Message: "a node may not write the spec of its Node"},
		{Expression: "request.operation == 'CREATE' ? (!has(object.metadata.finalizers) && !has(object.metadata.ownerReferences)) : (object.metadata.?finalizers == oldObject.metadata.?finalizers && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences)", Message: "a node may not change the finalizers or owner references of its Node"},
	}
}

// coreNodeRules: of a core Node the coordinator writes the cordon and its annotations.
func coreNodeRules() []access.Rule {
	return []access.Rule{
		{Expression: "request.operation == 'UPDATE' && !variables.status", Message: "Ebb may not create or delete core Nodes, or write their status"},
		{
			Expression: "request.operation != 'UPDATE' || (object.metadata.?labels == oldObject.metadata.?labels && object.metadata.?finalizers == oldObject.metadata.?finalizers && " +
				"object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences && object.spec.?taints == oldObject.spec.?taints && object.spec.?providerID == oldObject.spec.?providerID)",
			Message: "of a core Node Ebb may write the cordon and its own annotations only",
		},
		{
			Expression: "request.operation != 'UPDATE' || (" + foreignAnnotations("object", "oldObject") + " && " + foreignAnnotations("oldObject", "object") + ")",
			Message:    "of a core Node Ebb may write no annotations but those of ebb.dev",
		},
	}
}

// foreignAnnotations is that all annotations of one object that are not Ebb's are those of another.
func foreignAnnotations(of, in string) string {
	return fmt.Sprintf("%[1]s.metadata.?annotations.orValue({}).all(k, k.startsWith('ebb.dev/') || %[2]s.metadata.?annotations[?k] == %[1]s.metadata.?annotations[?k])", of, in)
}

// guardNames: Ebb makes and deletes no pods and budgets but those of guards.
func guardNames() []access.Rule {
	return []access.Rule{{Expression: "variables.name.startsWith('ebb-guard-')", Message: "Ebb may create and delete guards only"}}
}

// guardRules: a guard has no privilege and reads nothing.
func guardRules() []access.Rule {
	return append(guardNames(), access.Rule{
		Expression: "request.operation != 'CREATE' || (object.spec.?volumes.orValue([]).size() == 0 && object.spec.?initContainers.orValue([]).size() == 0 && " +
			"!object.spec.?hostNetwork.orValue(false) && !object.spec.?hostPID.orValue(false) && !object.spec.?hostIPC.orValue(false) && " +
			"object.spec.?securityContext.?runAsNonRoot.orValue(false) && !object.spec.?automountServiceAccountToken.orValue(true) && " +
			"object.spec.containers.all(c, !c.?securityContext.?privileged.orValue(false) && !c.?securityContext.?allowPrivilegeEscalation.orValue(true) && " +
			"c.?securityContext.?capabilities.?drop.orValue([]).exists(d, d == 'ALL') && c.?securityContext.?capabilities.?add.orValue([]).size() == 0 && " +
			"c.?securityContext.?runAsNonRoot.orValue(true) && c.?securityContext.?runAsUser.orValue(65532) != 0 && c.?env.orValue([]).size() == 0 && c.?envFrom.orValue([]).size() == 0))",
		Message: "a guard has no privilege, no volume, no token and no environment",
	})
}

// podRules: of pods in other namespaces than its own Ebb evicts and deletes those of nodes that drain, and none of the system.
func podRules(o Options) []access.Rule {
	system := drainconfig.DefaultSystemNamespaces
	if o.Drains != nil {
		system = o.Drains.SystemNamespaces.String()
	}
	return []access.Rule{
		{
			Expression: "request.operation == 'DELETE' || (request.operation == 'CREATE' && request.?subResource.orValue('') == 'eviction')",
			Message:    "Ebb may evict and delete pods, and not create or change them",
		},
		{Expression: fmt.Sprintf("!request.namespace.matches(%q)", system), Message: "Ebb never moves pods of system namespaces"},
	}
}

// sameNodeSpec compares the specs by meaning: a node writes the whole object, and for it an absent field and an empty one are the same.
const sameNodeSpec = "object.?spec.?cordoned.orValue(false) == oldObject.?spec.?cordoned.orValue(false) && " +
	"object.?spec.?evictionRequested.orValue(false) == oldObject.?spec.?evictionRequested.orValue(false) && " +
	"object.?spec.?desired == oldObject.?spec.?desired && " +
	"object.?spec.?disks.orValue([]).size() == oldObject.?spec.?disks.orValue([]).size() && " +
	"object.?spec.?disks.orValue([]).all(d, oldObject.?spec.?disks.orValue([]).exists(o, o.name == d.name && o.path == d.path && o.?allowScheduling == d.?allowScheduling && " +
	"o.?evictionRequested.orValue(false) == d.?evictionRequested.orValue(false) && quantity(string(o.?reserved.orValue('0'))).compareTo(quantity(string(d.?reserved.orValue('0')))) == 0))"

const (
	isElection = "variables.name == '" + lease.CoordinatorName + "'"
	// A name that is too long for that of a Lease ends in a sum, which a policy cannot compute: the Lease names its node, and did so before.
	isOwn = "(variables.name == 'node-' + variables.node || (size(variables.node) > 248 && size(variables.name) > 200 && variables.name.matches('-[0-9a-f]{16}$') && " +
		"('node-' + variables.node).startsWith(variables.name.substring(0, size(variables.name) - 17)) && " +
		"object.metadata.?annotations[?'" + lease.NodeAnnotation + "'].orValue('') == variables.node && " +
		"(request.operation == 'CREATE' || oldObject.metadata.?annotations[?'" + lease.NodeAnnotation + "'].orValue('') == variables.node)))"
)

// electionRules: a node makes only itself the holder of the election, and releases only its own.
func electionRules() []access.Rule {
	holder := "object.?spec.?holderIdentity.orValue('')"
	was := "(request.operation == 'CREATE' ? '' : oldObject.?spec.?holderIdentity.orValue(''))"
	own := "startsWith(variables.node + '/')"
	return []access.Rule{{
		Expression: fmt.Sprintf("!(%s) || (request.operation != 'DELETE' && (%s.%s || (%s == '' && (%s == '' || %s.%s))))", isElection, holder, own, holder, was, was, own),
		Message:    "a node may make only itself the holder of the election, and release only its own",
	}}
}

// leaseRules: a node writes its own Lease, and only the coordinator fences an epoch.
func leaseRules() []access.Rule {
	fenced := func(object string) string {
		return object + ".metadata.?annotations[?'" + lease.FencedAnnotation + "'].orValue('')"
	}
	return []access.Rule{
		{Expression: isElection + " || (request.operation != 'DELETE' && " + isOwn + ")", Message: "a node may write its own Lease only"},
		{
			Expression: isElection + " || " + fenced("object") + " == (request.operation == 'CREATE' ? '' : " + fenced("oldObject") + ")",
			Message:    "only the coordinator may fence an epoch",
		},
	}
}

// workRules are the rules of an object of work. A node creates and deletes none.
func workRules(object access.Object) []access.Rule {
	if object.Node == nil {
		return []access.Rule{{Expression: "false", Message: "only the coordinator may write " + object.Resource}}
	}
	rules := []access.Rule{{Expression: "request.operation == 'UPDATE'", Message: "a node may not create or delete " + object.Resource}}
	return append(rules, object.Node.Rules()...)
}

func (p policy) build(o Options) runtime.Object {
	match := &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update, admissionv1.Delete},
		Rule:       admissionv1.Rule{APIGroups: []string{p.group}, APIVersions: []string{"*"}, Resources: []string{p.resource, p.resource + "/*"}},
	}}}}
	if p.outside {
		match.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{Namespace}},
		}}
	} else if p.group != groupEbb {
		match.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": cmp.Or(p.namespace, Namespace)}}
	}
	validations := []admissionv1.Validation{{
		Expression: "variables.node != ''",
		Message:    "the token has no claim " + signer.NodeClaim + ": use a token that is bound to a pod on a node",
	}}
	for _, r := range p.all {
		validations = append(validations, validation(r.Expression, r.Message))
	}
	for _, r := range p.mine {
		validations = append(validations, validation("variables.leads || ("+r.Expression+")", r.Message))
	}
	built := &admissionv1.ValidatingAdmissionPolicy{
		TypeMeta: typed(policyVersion, "ValidatingAdmissionPolicy"), ObjectMeta: meta(o, p.name, ""),
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy:    new(admissionv1.Fail),
			MatchConstraints: match,
			MatchConditions:  []admissionv1.MatchCondition{{Name: "nodes", Expression: fmt.Sprintf("request.userInfo.username == '%s'", User(NodeAccount))}},
			Variables: []admissionv1.Variable{
				{Name: "node", Expression: fmt.Sprintf("request.userInfo.?extra[?'%[1]s'].orValue([]).size() == 1 ? request.userInfo.extra['%[1]s'][0] : ''", signer.NodeClaim)},
				{Name: "status", Expression: "request.?subResource.orValue('') == 'status'"},
				{Name: "name", Expression: "request.operation == 'DELETE' ? oldObject.metadata.name : object.metadata.name"},
			},
			Validations: validations,
		},
	}
	if p.lenient {
		built.Spec.FailurePolicy = new(admissionv1.Ignore)
	}
	if !p.anyTerm {
		built.Spec.ParamKind = &admissionv1.ParamKind{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Term"}
		leads := admissionv1.Variable{Name: "leads", Expression: "variables.node != '' && params != null && params.?spec.?node.orValue('') == variables.node"}
		built.Spec.Variables = append(built.Spec.Variables, leads)
	}
	return built
}

func validation(expression, message string) admissionv1.Validation {
	return admissionv1.Validation{
		Expression: expression, Message: message,
		MessageExpression: fmt.Sprintf("'node ' + variables.node + ': %s'", strings.ReplaceAll(message, "'", "\\'")), Reason: new(metav1.StatusReasonForbidden),
	}
}

func (p policy) binding(o Options) runtime.Object {
	built := &admissionv1.ValidatingAdmissionPolicyBinding{
		TypeMeta: typed(policyVersion, "ValidatingAdmissionPolicyBinding"), ObjectMeta: meta(o, p.name, ""),
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: p.name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}
	if !p.anyTerm {
		built.Spec.ParamRef = &admissionv1.ParamRef{Name: v1alpha1.TermName, ParameterNotFoundAction: new(admissionv1.DenyAction)}
	}
	if p.lenient {
		built.Spec.ParamRef.ParameterNotFoundAction = new(admissionv1.AllowAction)
	}
	return built
}

// invariants hold for everybody: what the embedded API refuses to an administrator too, as far as a policy can see it.
func invariants(o Options) []runtime.Object {
	number := func(object, annotation string) string {
		return fmt.Sprintf("int(%s.metadata.?annotations[?'%s'].orValue('0'))", object, annotation)
	}
	kept := func(annotation string) string {
		return "request.operation != 'UPDATE' || !oldObject.metadata.name.startsWith('node-') || " + number("object", annotation) + " >= " + number("oldObject", annotation)
	}
	list := []struct {
		name, group, resource string
		namespaced            bool
		operations            []admissionv1.OperationType
		conditions            []admissionv1.MatchCondition
		validations           []admissionv1.Validation
	}{
		{name: "ebb-keep-settings", group: groupEbb, resource: "settings", operations: []admissionv1.OperationType{admissionv1.Delete}, validations: []admissionv1.Validation{
			{Expression: "false", Message: "the Settings object holds the cluster's drain slot and cannot be deleted; use `ebb settings set` to change it, or `ebb uninstall` to remove Ebb"},
		}},
		{name: "ebb-keep-terms", group: groupEbb, resource: "terms", operations: []admissionv1.OperationType{admissionv1.Delete}, validations: []admissionv1.Validation{
			{Expression: "false", Message: "the Term says who leads, and without it nobody may write; use `ebb uninstall` to remove Ebb"},
		}},
		{name: "ebb-keep-drains", group: groupEbb, resource: "drains", operations: []admissionv1.OperationType{admissionv1.Delete}, validations: []admissionv1.Validation{
			{Expression: "oldObject.?status.?phase.orValue('') != 'Stopping'", Message: "the drain is Stopping: the node is empty and is shutting down, so the drain can no longer be cancelled; delete the Drain when it has ended"},
		}},
		{
			name: "ebb-keep-leases", group: "coordination.k8s.io", resource: "leases", namespaced: true, operations: []admissionv1.OperationType{admissionv1.Update, admissionv1.Delete},
			// A namespace that is deleted takes its Leases with it.
			conditions: []admissionv1.MatchCondition{{Name: "not-the-namespace", Expression: "request.userInfo.username != 'system:serviceaccount:kube-system:namespace-controller'"}},
			validations: []admissionv1.Validation{
				{Expression: "request.operation != 'DELETE' || !oldObject.metadata.name.startsWith('node-')", Message: "the Lease of a node records epochs that must not be used again and cannot be deleted; it is enough to delete the Node"},
				{Expression: kept(lease.EpochAnnotation), Message: "the epoch of a node must not decrease"},
				{Expression: kept(lease.FencedAnnotation), Message: "the fenced epoch of a node must not decrease"},
			},
		},
	}
	var objects []runtime.Object
	for _, i := range list {
		match := &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: i.operations, Rule: admissionv1.Rule{APIGroups: []string{i.group}, APIVersions: []string{"*"}, Resources: []string{i.resource}},
		}}}}
		if i.namespaced {
			match.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": Namespace}}
		}
		objects = append(objects,
			&admissionv1.ValidatingAdmissionPolicy{
				TypeMeta: typed(policyVersion, "ValidatingAdmissionPolicy"), ObjectMeta: meta(o, i.name, ""),
				Spec: admissionv1.ValidatingAdmissionPolicySpec{FailurePolicy: new(admissionv1.Fail), MatchConstraints: match, MatchConditions: i.conditions, Validations: i.validations},
			},
			&admissionv1.ValidatingAdmissionPolicyBinding{
				TypeMeta: typed(policyVersion, "ValidatingAdmissionPolicyBinding"), ObjectMeta: meta(o, i.name, ""),
				Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: i.name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
			})
	}
	return objects
}
