package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

func newCordon() *cobra.Command {
	return newCordonCommand("cordon", "Keep new work away from a node; what runs there stays", true)
}

func newUncordon() *cobra.Command {
	return newCordonCommand("uncordon", "Allow new work on a node again", false)
}

func newCordonCommand(verb, short string, cordoned bool) *cobra.Command {
	var c cluster
	var out output
	cmd := &cobra.Command{
		Use:     verb + " NODE",
		Short:   short,
		Example: "  ebb " + verb + " n2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			node, changed, err := setCordoned(cmd.Context(), cl, args[0], cordoned)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), node, func() string {
				already := ""
				if !changed {
					already = "already "
				}
				return fmt.Sprintf("node %s %s%sed%s\n", node.Name, already, verb, consequence(node))
			})
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	return cmd
}

// consequence says what follows from the node being uncordoned, if anything does.
func consequence(node *v1alpha1.Node) string {
	switch {
	case node.Spec.Cordoned:
		return ""
	case node.Status.Parked != nil && node.Status.Epoch == node.Status.Parked.Epoch:
		return fmt.Sprintf("; it was parked and joins again in epoch %d", node.Status.Epoch+1)
	case len(v1alpha1.CordonOwners(node)) > 0:
		return "; what cordoned it is cancelled"
	}
	return ""
}

// setCordoned cordons or uncordons a node. A person who uncordons a node leaves the owners of its cordon in place: the coordinator
// cancels what they wanted and then removes them. The cordon of a person has no owners.
func setCordoned(ctx context.Context, c client.Client, name string, cordoned bool) (*v1alpha1.Node, bool, error) {
	for {
		node := &v1alpha1.Node{}
		if err := c.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
			if kubeclient.IsMissing(err) {
				err = fmt.Errorf("there is no node %q: `ebb status` lists the nodes", name)
			}
			return nil, false, err
		}
		if node.Spec.Cordoned == cordoned {
			return node, false, nil
		}
		if cordoned {
			v1alpha1.SetCordonOwners(node, nil)
		}
		node.Spec.Cordoned = cordoned
		if err := c.Update(ctx, node); !apierrors.IsConflict(err) {
			return node, true, err
		}
	}
}
