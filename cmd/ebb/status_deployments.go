package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/kind"
)

// deploymentsStatus is what `ebb status deployments` prints.
type deploymentsStatus struct {
	Deployments []deployment.Status `json:"deployments"`
}

func newStatusDeployments() *cobra.Command {
	var c cluster
	var out output
	var namespace string
	cmd := &cobra.Command{
		Use:   "deployments [NAME]",
		Short: "Show deployments and daemons, and whether each runs where it should",
		Long: `Show deployments and daemons, and whether each runs where it should. RUNNING shows on how many nodes it runs, of those
on which it should. SINCE shows how long that has been so. The state on each node is shown for NAME, and for every deployment
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
			list, err := deployment.ReadStatus(cmd.Context(), cl, key)
			if err != nil {
				return err
			}
			status := &deploymentsStatus{Deployments: list}
			return out.print(cmd.OutOrStdout(), status, func() string { return status.text(c.now(), key.Name != "") })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	addNamespace(cmd.Flags(), &namespace, "", "only this namespace (default all)")
	return cmd
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
			d.Running, d.Wanted, d.Restarts, age(now, d.Since.Time), d.Note())
	}
	w.Flush()
	for _, d := range s.Deployments {
		if details || !d.Healthy {
			writeNodes(&b, d, now)
		}
	}
	return trimLines(b.String())
}

// writeNodes writes one line for each node.
func writeNodes(b *strings.Builder, d deployment.Status, now time.Time) {
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
