package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/kind"
)

// deploymentsStatus is what `ebb status deployments` prints.
type deploymentsStatus struct {
	Deployments []deploymentStatus `json:"deployments"`
}

// deploymentStatus is one deployment or daemon.
type deploymentStatus struct {
	Namespace string                   `json:"namespace"`
	Name      string                   `json:"name"`
	Type      v1alpha1.DeploymentType  `json:"type"`
	State     v1alpha1.DeploymentState `json:"state"`
	Address   string                   `json:"address"`
	Holder    string                   `json:"holder"`
	Wanted    int32                    `json:"wanted"`
	Running   int32                    `json:"running"`
	// Everywhere says whether a daemon runs on every node on which it should.
	Everywhere *bool       `json:"everywhere,omitempty"`
	Healthy    bool        `json:"healthy"`
	Restarts   int32       `json:"restarts"`
	Since      metav1.Time `json:"since"`
	Notes      []string    `json:"notes"`
	// Nodes are those on which processes of it may run, and for a daemon those on which it does not run, with the reason.
	Nodes []instanceStatus `json:"nodes"`
}

// instanceStatus is a program on one node.
type instanceStatus struct {
	v1alpha1.DeploymentInstance `json:",inline"`
	// Absent says that it does not run there; the message is the reason.
	Absent bool `json:"absent,omitempty"`
}

// missing is the state shown where a daemon should run and does not.
const missing = "Missing"

func newStatusDeployments() *cobra.Command {
	var c cluster
	var out output
	var namespace string
	cmd := &cobra.Command{
		Use:   "deployments [NAME]",
		Short: "Show deployments and daemons, and whether each runs where it should",
		Long: `Show deployments and daemons, and whether each runs where it should. RUNNING is on how many nodes it runs, of those on which it
should. SINCE is how long it has been running everywhere, or not. The state on each node is shown for NAME, and for every deployment
or daemon that is not healthy.`,
		Example: `  ebb status deployments
  ebb status deployments heartbeat
  ebb status deployments -n monitoring -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			key := types.NamespacedName{Namespace: namespace}
			if len(args) > 0 {
				key.Name = args[0]
			}
			status, err := readDeployments(cmd.Context(), cl, key)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), status, func() string { return status.text(time.Now(), key.Name != "") })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	addNamespace(cmd.Flags(), &namespace, "", "only this namespace (default all)")
	return cmd
}

// readDeployments reads the deployments and daemons that match a key: an empty name or namespace matches any.
func readDeployments(ctx context.Context, c client.Client, key types.NamespacedName) (*deploymentsStatus, error) {
	var list v1alpha1.DeploymentList
	if err := c.List(ctx, &list, client.InNamespace(key.Namespace)); err != nil {
		return nil, err
	}
	w, err := deployment.ReadWorld(ctx, c)
	if err != nil {
		return nil, err
	}
	status := &deploymentsStatus{Deployments: []deploymentStatus{}}
	for i := range list.Items {
		if d := &list.Items[i]; key.Name == "" || d.Name == key.Name {
			status.Deployments = append(status.Deployments, deploymentStatusOf(w, d))
		}
	}
	if key.Name != "" && len(status.Deployments) == 0 {
		where := "in any namespace"
		if key.Namespace != "" {
			where = fmt.Sprintf("in namespace %q", key.Namespace)
		}
		return nil, fmt.Errorf("there is no deployment or daemon %q %s: `ebb status deployments` lists all", key.Name, where)
	}
	slices.SortFunc(status.Deployments, func(a, b deploymentStatus) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return status, nil
}

func deploymentStatusOf(w deployment.World, d *v1alpha1.Deployment) deploymentStatus {
	s := deploymentStatus{
		Namespace: d.Namespace, Name: d.Name, Type: d.Spec.Type, State: d.Status.State, Address: d.Spec.Address, Holder: d.Holder().Node,
		Wanted: d.Status.Wanted, Running: d.Status.Running, Since: d.CreationTimestamp, Healthy: deployment.Healthy(d), Nodes: []instanceStatus{},
	}
	if running := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning); running != nil {
		s.Since = running.LastTransitionTime
	}
	for _, i := range d.Status.Nodes {
		s.Restarts += i.Restarts
		s.Nodes = append(s.Nodes, instanceStatus{DeploymentInstance: i})
	}
	if d.Spec.Type == v1alpha1.TypeDaemon && d.IsEnabled() {
		everywhere := meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.DeploymentRunning) && s.Running == s.Wanted
		s.Everywhere = &everywhere
		s.Nodes = append(s.Nodes, absences(w, d)...)
	}
	slices.SortFunc(s.Nodes, func(a, b instanceStatus) int { return cmp.Compare(a.Node, b.Node) })
	s.Notes = s.notes(w, d)
	return s
}

// absences returns the nodes on which an enabled daemon does not run, with the reasons.
func absences(w deployment.World, d *v1alpha1.Deployment) []instanceStatus {
	var list []instanceStatus
	for name, n := range w.Nodes {
		if !w.Live(name) || d.Instance(name) != nil {
			continue
		}
		i := instanceStatus{DeploymentInstance: v1alpha1.DeploymentInstance{Node: name, NodeEpoch: n.Status.Epoch}, Absent: true}
		if i.Message = notFor(d, n); i.Message == "" {
			i.State, i.Message = missing, "the node has not started it yet"
		}
		list = append(list, i)
	}
	return list
}

// notFor returns why a daemon should not run on a node; empty if it should.
func notFor(d *v1alpha1.Deployment, n *v1alpha1.Node) string {
	if d.Spec.Selector != nil {
		s, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
		if err != nil || !s.Matches(labels.Set(n.Labels)) {
			return "should not run here: labels do not match"
		}
	}
	if trust, err := deployment.ParseTrust(n.Status.TrustedCommands); err != nil || !trust.Allows(&d.Spec) {
		return "should not run here: command not trusted"
	}
	if n.Status.Liveness == v1alpha1.Stopping {
		return "should not run here: the node is stopping"
	}
	return ""
}

// notes returns everything that is not healthy, and for a daemon that it runs everywhere.
func (s *deploymentStatus) notes(w deployment.World, d *v1alpha1.Deployment) []string {
	notes := []string{}
	if !d.DeletionTimestamp.IsZero() {
		notes = append(notes, "being deleted")
	}
	running := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
	if running == nil || running.ObservedGeneration != d.Generation {
		notes = append(notes, "the coordinator has not seen its last change yet")
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentValid); c != nil && c.Status != metav1.ConditionTrue {
		notes = append(notes, c.Reason+": "+c.Message)
	}
	switch {
	case running != nil && running.Status != metav1.ConditionTrue:
		notes = append(notes, running.Reason+": "+running.Message)
	case s.Everywhere != nil && *s.Everywhere:
		notes = append(notes, everywhere(w, s.Wanted))
	}
	if s.Holder != "" && s.Holder != s.Address {
		notes = append(notes, "still held by "+s.Holder)
	}
	return notes
}

// everywhere is the note that a daemon runs on all matching nodes, with their number if these are not all nodes.
func everywhere(w deployment.World, wanted int32) string {
	var live int32
	for name := range w.Nodes {
		if w.Live(name) {
			live++
		}
	}
	if wanted == live {
		return "everywhere"
	}
	return fmt.Sprintf("on all matching nodes: %d of %d", wanted, live)
}

// displayName returns a name with its namespace, unless that is the default one.
func displayName(d *v1alpha1.Deployment) string { return kind.NameIn(d.Namespace, d.Name) }

// arguments name an object on a command line.
func arguments(d *v1alpha1.Deployment) string {
	if d.Namespace == kind.DefaultNamespace {
		return d.Name
	}
	return d.Name + " -n " + d.Namespace
}

func (s *deploymentsStatus) text(now time.Time, details bool) string {
	if len(s.Deployments) == 0 {
		return "no deployments and no daemons\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tTYPE\tSTATE\tADDRESS\tRUNNING\tRESTARTS\tSINCE\tNOTE")
	for _, d := range s.Deployments {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d/%d\t%d\t%s\t%s\n", kind.NameIn(d.Namespace, d.Name), d.Type, orDash(string(d.State)), orDash(d.Address),
			d.Running, d.Wanted, d.Restarts, age(now, d.Since.Time), d.note())
	}
	w.Flush()
	for _, d := range s.Deployments {
		if details || !d.Healthy {
			d.writeNodes(&b, now)
		}
	}
	return trimLines(b.String())
}

// note is all notes in one line.
func (d deploymentStatus) note() string {
	var notes []string
	for _, n := range d.Notes {
		notes = append(notes, strings.TrimSuffix(kind.OneLine(n), "."))
	}
	return strings.Join(notes, "; ")
}

// writeNodes writes one line for each node.
func (d deploymentStatus) writeNodes(b *strings.Builder, now time.Time) {
	name := kind.NameIn(d.Namespace, d.Name)
	if len(d.Nodes) == 0 {
		fmt.Fprintf(b, "\n%s runs on no node\n", name)
		return
	}
	fmt.Fprintf(b, "\n%s on each node:\n", name)
	w := tabwriter.NewWriter(b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NODE\tSTATE\tPID\tRESTARTS\tSINCE\tLAST EXIT\tPAUSE\tMESSAGE")
	for _, i := range d.Nodes {
		pid, since, exit, pause := "-", "-", "-", "-"
		if i.PID != 0 {
			pid = fmt.Sprint(i.PID)
		}
		if i.Since != nil {
			since = age(now, i.Since.Time)
		}
		if i.LastExit != nil {
			exit = fmt.Sprintf("%s (%s ago)", kind.OneLine(i.LastExit.Message), age(now, i.LastExit.At.Time))
		}
		if i.Pause != nil {
			pause = i.Pause.Duration.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", i.Node, orDash(string(i.State)), pid, i.Restarts, since, exit, pause, kind.OneLine(i.Message))
	}
	w.Flush()
}

func age(now, then time.Time) string { return duration.HumanDuration(now.Sub(then)) }

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// deploymentsSummary counts deployments and daemons, for programs that read the status.
type deploymentsSummary struct {
	Deployments int `json:"deployments"`
	Daemons     int `json:"daemons"`
	// Unhealthy are those that do not run where they should, or are invalid.
	Unhealthy []string `json:"unhealthy"`
}

// summarizeDeployments is nil when there are none.
func summarizeDeployments(list []v1alpha1.Deployment) *deploymentsSummary {
	if len(list) == 0 {
		return nil
	}
	s := &deploymentsSummary{Unhealthy: []string{}}
	for i := range list {
		d := &list[i]
		if d.Spec.Type == v1alpha1.TypeDaemon {
			s.Daemons++
		} else {
			s.Deployments++
		}
		if !deployment.Healthy(d) {
			s.Unhealthy = append(s.Unhealthy, displayName(d))
		}
	}
	slices.Sort(s.Unhealthy)
	return s
}
