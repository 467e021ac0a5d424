package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/kube"
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
			cfg, err := c.config()
			if err != nil {
				return err
			}
			cl, err := kubeclient.New(cfg)
			if err != nil {
				return err
			}
			node, changed, err := setCordoned(cmd.Context(), cl, cfg, args[0], cordoned)
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

// consequence returns what follows from the change of the cordon, if anything does.
func consequence(node *v1alpha1.Node) string {
	switch {
	case node.Spec.Cordoned && len(v1alpha1.CordonOwners(node)) > 0:
		return "; Ebb had cordoned it, and it stays cordoned when Ebb would uncordon it"
	case node.Spec.Cordoned:
		return ""
	case node.Status.Parked != nil && node.Status.Epoch == node.Status.Parked.Epoch:
		return fmt.Sprintf("; it was parked and joins again in epoch %d", node.Status.Epoch+1)
	case len(v1alpha1.CordonOwners(node)) > 0:
		return "; the drain or quarantine that cordoned it is cancelled"
	}
	return ""
}

// setCordoned cordons or uncordons a node: on Kubernetes its core Node. When a person uncordons a node, the owners of the cordon stay in
// place: the coordinator cancels their drains and quarantines, and then removes them. The cordon of a person has no owners; a person who cordons a node that Ebb
// cordoned becomes one of them, so that the cordon stays when the others are gone. It returns Ebb's Node as it is then, or will be soon.
func setCordoned(ctx context.Context, c client.Client, cfg *rest.Config, name string, cordoned bool) (*v1alpha1.Node, bool, error) {
	for {
		node := &v1alpha1.Node{}
		if err := c.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
			if !kubeclient.IsMissing(err) {
				return nil, false, err
			}
			node = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} // a core Node may have no Node of Ebb
		}
		target, err := kube.CordonOf(ctx, c, cfg, node)
		if err == nil && target == client.Object(node) && node.UID == "" {
			err = fmt.Errorf("there is no node %q: `ebb status` lists the nodes", name)
		}
		if err != nil {
			return nil, false, err
		}
		was := cordon.Is(target)
		cordon.Set(target, cordoned)
		owners := v1alpha1.CordonOwners(target)
		takesOver := was && cordoned && len(owners) > 0 && !slices.Contains(owners, v1alpha1.CordonPerson)
		if was == cordoned && !takesOver {
			return node, false, nil
		}
		if cordon.Is(target) != cordoned {
			return nil, false, fmt.Errorf("node %q stays cordoned: a taint of its core Node shows that an autoscaler is about to remove it", name)
		}
		if cordoned && !takesOver {
			v1alpha1.SetCordonOwners(target, nil)
		}
		if takesOver {
			v1alpha1.AddCordonOwner(target, v1alpha1.CordonPerson)
		}
		if err := c.Update(ctx, target); !apierrors.IsConflict(err) {
			node.Spec.Cordoned = cordoned
			v1alpha1.SetCordonOwners(node, v1alpha1.CordonOwners(target))
			return node, true, err
		}
	}
}
