package main

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/volume"
)

func newVolume() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "volume",
		Aliases: []string{"vol"},
		Short:   "Create, attach, inspect, repair and remove replicated block volumes",
	}
	replica := &cobra.Command{Use: "replica", Short: "Remove or evict one replica of a volume"}
	replica.AddCommand(newReplicaRemove(), newReplicaEvict())
	cmd.AddCommand(newVolumeCreate(), newVolumeAttach(), newVolumeDetach(), newVolumeList("list"), newVolumeInspect(), newVolumeRemove(), newVolumeOrphans(), newVolumeSalvage(), replica)
	return cmd
}

// volumeCommand holds the flags of every command about volumes.
type volumeCommand struct {
	cluster
	out       output
	namespace string
	wait      time.Duration
}

func (v *volumeCommand) addFlags(cmd *cobra.Command) {
	v.cluster.addFlags(cmd.Flags())
	v.out.addFlag(cmd.Flags())
	addNamespace(cmd.Flags(), &v.namespace, kind.DefaultNamespace, "namespace of the volume")
}

func (v *volumeCommand) addWait(cmd *cobra.Command, until string) {
	cmd.Flags().DurationVar(&v.wait, "wait", 0, "how long to wait until "+until+"; 0 to return at once")
}

func (v *volumeCommand) get(ctx context.Context, c client.Client, name string) (*v1alpha1.Volume, error) {
	vol := &v1alpha1.Volume{}
	err := c.Get(ctx, types.NamespacedName{Namespace: v.namespace, Name: name}, vol)
	if kubeclient.IsMissing(err) {
		return nil, fmt.Errorf("there is no volume %q in namespace %s: `ebb volume list` lists them", name, v.namespace)
	}
	return vol, err
}

// change updates a volume, again if somebody else did meanwhile.
func (v *volumeCommand) change(ctx context.Context, c client.Client, name string, status bool, do func(*v1alpha1.Volume) error) (*v1alpha1.Volume, error) {
	vol, err := v.get(ctx, c, name)
	if err != nil {
		return nil, err
	}
	write := kubeclient.Change[v1alpha1.Volume]
	if status {
		write = kubeclient.ChangeStatus[v1alpha1.Volume]
	}
	return vol, write(ctx, c, vol, func(vol *v1alpha1.Volume) (bool, error) { return true, do(vol) })
}

// until waits until a condition holds for a volume, but at most as long as --wait.
func (v *volumeCommand) until(ctx context.Context, c client.Client, name, what string, holds func(*v1alpha1.Volume) bool) (*v1alpha1.Volume, error) {
	deadline := time.Now().Add(v.wait)
	for {
		vol, err := v.get(ctx, c, name)
		if err != nil || v.wait == 0 || holds(vol) {
			return vol, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("volume %s is not %s after %s%s; `ebb volume inspect %s` shows its progress", name, what, v.wait, whyNot(vol), volume.Argument(v.namespace, name))
		}
		if err := backoff.Sleep(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// whyNot returns what is wrong with a volume, as the end of a sentence; empty if nothing is known.
func whyNot(vol *v1alpha1.Volume) string {
	views := volume.Views([]v1alpha1.Volume{*vol}, nil, time.Now())
	if len(views[0].Notes) == 0 {
		return ""
	}
	return ": " + strings.TrimSuffix(strings.Join(views[0].Notes, "; "), ".")
}

func newVolumeCreate() *cobra.Command {
	var v volumeCommand
	var size string
	vol := &v1alpha1.Volume{}
	cmd := &cobra.Command{
		Use:     "create NAME --size SIZE",
		Short:   "Create a volume",
		Example: "  ebb volume create data --size 10Gi --replicas 3 --attach-to n1 --wait 30s",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := resource.ParseQuantity(size)
			if err != nil {
				return fmt.Errorf("--size %q is not a size such as 10Gi", size)
			}
			if vol.Spec.Replicas < 1 || vol.Spec.Replicas > 5 {
				return fmt.Errorf("--replicas must be from 1 to 5")
			}
			vol.ObjectMeta, vol.Spec.Size = metav1.ObjectMeta{Namespace: v.namespace, Name: args[0]}, q
			c, err := v.client()
			if err != nil {
				return err
			}
			if vol.Spec.AttachTo != "" {
				if err := checkNode(cmd.Context(), c, vol.Spec.AttachTo); err != nil {
					return err
				}
			}
			if err := c.Create(cmd.Context(), vol); apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("there is a volume %q in namespace %s already", args[0], v.namespace)
			} else if err != nil {
				return err
			}
			done, err := v.until(cmd.Context(), c, args[0], "ready", func(vol *v1alpha1.Volume) bool {
				return vol.Status.Robustness == v1alpha1.VolumeHealthy && (vol.Spec.AttachTo == "" || serving(vol))
			})
			if err != nil {
				return err
			}
			return v.out.print(cmd.OutOrStdout(), done, func() string { return "volume " + args[0] + " created\n" + uriLine(done) })
		},
	}
	v.addFlags(cmd)
	v.addWait(cmd, "its replicas are healthy and, with --attach-to, clients can connect")
	cmd.Flags().StringVar(&size, "size", "", "size, such as 10Gi; a multiple of 4096 bytes (required)")
	cmd.Flags().Int32Var(&vol.Spec.Replicas, "replicas", 3, "how many copies are kept, 1 to 5")
	cmd.Flags().StringVar(&vol.Spec.AttachTo, "attach-to", "", "node on which clients use the volume")
	_ = cmd.MarkFlagRequired("size")
	return cmd
}

// checkNode makes sure that there is such a node.
func checkNode(ctx context.Context, c client.Client, name string) error {
	err := c.Get(ctx, types.NamespacedName{Name: name}, &v1alpha1.Node{})
	if kubeclient.IsMissing(err) {
		return fmt.Errorf("there is no node %q: `ebb status` lists the nodes", name)
	}
	return err
}

func serving(v *v1alpha1.Volume) bool {
	e := v.Status.Engine
	return v.Spec.AttachTo == v.Status.AttachedTo && e != nil && e.Node == v.Status.AttachedTo && e.Serving && v.Status.NBDURI != ""
}

func uriLine(v *v1alpha1.Volume) string {
	if !serving(v) {
		return ""
	}
	return v.Status.NBDURI + "\n"
}

func newVolumeAttach() *cobra.Command {
	var v volumeCommand
	cmd := &cobra.Command{
		Use:   "attach NAME NODE",
		Short: "Attach a volume to a node and print where clients connect",
		Example: `  ebb volume attach data n1 --wait 30s
  nbdinfo "$(ebb volume attach data n1 --wait 30s)"`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := v.client()
			if err != nil {
				return err
			}
			if err := checkNode(cmd.Context(), c, args[1]); err != nil {
				return err
			}
			vol, err := v.change(cmd.Context(), c, args[0], false, func(vol *v1alpha1.Volume) error { vol.Spec.AttachTo = args[1]; return nil })
			if err != nil {
				return err
			}
			if v.wait > 0 {
				if vol, err = v.until(cmd.Context(), c, args[0], "attached", serving); err != nil {
					return err
				}
			}
			return v.out.print(cmd.OutOrStdout(), vol, func() string {
				if line := uriLine(vol); line != "" {
					return line
				}
				return fmt.Sprintf("volume %s is being attached to %s\n", vol.Name, args[1])
			})
		},
	}
	v.addFlags(cmd)
	v.addWait(cmd, "clients can connect")
	return cmd
}

func newVolumeDetach() *cobra.Command {
	var v volumeCommand
	cmd := &cobra.Command{
		Use:   "detach NAME",
		Short: "Detach a volume: disconnect its clients and flush everything they wrote",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := v.client()
			if err != nil {
				return err
			}
			vol, err := v.change(cmd.Context(), c, args[0], false, func(vol *v1alpha1.Volume) error { vol.Spec.AttachTo = ""; return nil })
			if err != nil {
				return err
			}
			if v.wait > 0 {
				if vol, err = v.until(cmd.Context(), c, args[0], "detached", func(vol *v1alpha1.Volume) bool { return vol.Status.AttachedTo == "" }); err != nil {
					return err
				}
			}
			return v.out.print(cmd.OutOrStdout(), vol, func() string { return "volume " + vol.Name + " detached\n" })
		},
	}
	v.addFlags(cmd)
	v.addWait(cmd, "it is detached")
	return cmd
}

// views reads the volumes of a namespace, or of all of them.
func (v *volumeCommand) views(ctx context.Context, c client.Client) ([]volume.View, error) {
	var volumes v1alpha1.VolumeList
	if err := c.List(ctx, &volumes, client.InNamespace(v.namespace)); err != nil {
		return nil, err
	}
	var replicas v1alpha1.ReplicaList
	if err := c.List(ctx, &replicas, client.InNamespace(v.namespace)); err != nil {
		return nil, err
	}
	return volume.Views(volumes.Items, replicas.Items, time.Now()), nil
}

func newVolumeList(use string) *cobra.Command {
	var v volumeCommand
	cmd := &cobra.Command{
		Use:   use,
		Short: "Show volumes: their robustness, where they are attached, and their replicas by node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := v.client()
			if err != nil {
				return err
			}
			views, err := v.views(cmd.Context(), c)
			if err != nil {
				return err
			}
			return v.out.print(cmd.OutOrStdout(), views, func() string { return volume.Table(views) })
		},
	}
	v.cluster.addFlags(cmd.Flags())
	v.out.addFlag(cmd.Flags())
	addNamespace(cmd.Flags(), &v.namespace, "", "show only volumes of this namespace")
	return cmd
}

func newVolumeInspect() *cobra.Command {
	var v volumeCommand
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show everything that is known about a volume",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := v.client()
			if err != nil {
				return err
			}
			if _, err := v.get(cmd.Context(), c, args[0]); err != nil {
				return err
			}
			views, err := v.views(cmd.Context(), c)
			if err != nil {
				return err
			}
			at := slices.IndexFunc(views, func(view volume.View) bool { return view.Name == args[0] })
			if at < 0 {
				return fmt.Errorf("volume %s was deleted meanwhile", args[0])
			}
			return v.out.print(cmd.OutOrStdout(), views[at], views[at].Text)
		},
	}
	v.addFlags(cmd)
	return cmd
}

// confirm asks unless yes was given.
func confirm(cmd *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s Type yes to continue: ", question) // standard output is for the answer, which may be JSON
	answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')        // an end of input is a no
	if strings.TrimSpace(answer) != "yes" {
		return fmt.Errorf("nothing was done: type yes to confirm, or set --yes")
	}
	return nil
}

func newVolumeRemove() *cobra.Command {
	var v volumeCommand
	var yes bool
	cmd := &cobra.Command{
		Use:   "rm NAME",
		Short: "Remove a volume and the data of all its replicas",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := v.client()
			if err != nil {
				return err
			}
			vol, err := v.get(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if len(vol.Status.Members) > 0 {
				if err := confirm(cmd, yes, fmt.Sprintf("This deletes the data of volume %s on all nodes.", kind.NameIn(vol.Namespace, vol.Name))); err != nil {
					return err
				}
			}
			if err := c.Delete(cmd.Context(), vol, client.Preconditions{UID: &vol.UID}); err != nil {
				return err
			}
			return v.out.print(cmd.OutOrStdout(), vol, func() string { return "volume " + vol.Name + " is being removed\n" })
		},
	}
	v.addFlags(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func newVolumeSalvage() *cobra.Command {
	var v volumeCommand
	var yes bool
	var replica string
	cmd := &cobra.Command{
		Use:   "salvage NAME --replica REPLICA",
		Short: "Open a volume that cannot be opened otherwise, with one replica as its only member",
		Long: `Open a volume that cannot be opened otherwise: one replica becomes its only member. The other replicas are rebuilt from it, and data that only
they have is lost. Use this when the members are lost for good, or when the API was restored from a backup and replicas have a newer generation
than the Volume. Without --replica the command lists the replicas with their generations; the highest has the newest data.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := v.client()
			if err != nil {
				return err
			}
			var replicas v1alpha1.ReplicaList
			if err := c.List(cmd.Context(), &replicas, client.InNamespace(v.namespace)); err != nil {
				return err
			}
			vol, err := v.get(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if err := volume.Salvage(vol, replicas.Items, replica); err != nil {
				return err
			}
			if err := confirm(cmd, yes, fmt.Sprintf("Volume %s continues with replica %s alone; data that only other replicas have is lost.", args[0], replica)); err != nil {
				return err
			}
			if err := c.List(cmd.Context(), &replicas, client.InNamespace(v.namespace)); err != nil { // a person may have thought for a while
				return err
			}
			done, err := v.change(cmd.Context(), c, args[0], true, func(vol *v1alpha1.Volume) error { return volume.Salvage(vol, replicas.Items, replica) })
			if err != nil {
				return err
			}
			return v.out.print(cmd.OutOrStdout(), done, func() string {
				return fmt.Sprintf("volume %s continues with replica %s in generation %d\n", done.Name, replica, done.Status.Generation)
			})
		},
	}
	v.addFlags(cmd)
	cmd.Flags().StringVar(&replica, "replica", "", "replica to keep")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// orphan is a directory of a replica that no object knows.
type orphan struct {
	Node string `json:"node"`
	Disk string `json:"disk"`
	Name string `json:"name"`
}

func (o orphan) String() string { return o.Node + "/" + o.Disk + "/" + o.Name }

func newVolumeOrphans() *cobra.Command {
	var v volumeCommand
	var remove string
	cmd := &cobra.Command{
		Use:   "orphans",
		Short: "List directories of replicas that no object knows, or remove one by name",
		Long: `List directories of replicas that no object knows. Their node was down while the replica was deleted, or the
API was restored from a backup that does not know them. Nodes keep them until somebody removes them by name, because the API may be out of date.`,
		Example: "  ebb volume orphans\n  ebb volume orphans --remove n2/default/default-data-0a1b2c3d/data-r4",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := v.client()
			if err != nil {
				return err
			}
			var nodes v1alpha1.NodeList
			if err := c.List(cmd.Context(), &nodes); err != nil {
				return err
			}
			list := []orphan{}
			for _, n := range nodes.Items {
				for _, d := range n.Status.Disks {
					for _, name := range d.Orphans {
						list = append(list, orphan{n.Name, d.Name, name})
					}
				}
			}
			slices.SortFunc(list, func(a, b orphan) int { return strings.Compare(a.String(), b.String()) })
			if remove != "" {
				return v.removeOrphan(cmd, c, list, remove)
			}
			return v.out.print(cmd.OutOrStdout(), list, func() string { return orphanTable(list) })
		},
	}
	v.cluster.addFlags(cmd.Flags())
	v.out.addFlag(cmd.Flags())
	cmd.Flags().StringVar(&remove, "remove", "", "orphan to remove, as NODE/DISK/VOLUME/REPLICA from the list")
	return cmd
}

func orphanTable(list []orphan) string {
	if len(list) == 0 {
		return "no orphans\n"
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NODE\tDISK\tORPHAN")
	for _, o := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\n", o.Node, o.Disk, o.Name)
	}
	_ = w.Flush() // a Builder takes everything
	return text.String() + "\nRemove one with `ebb volume orphans --remove NODE/DISK/VOLUME/REPLICA`.\n"
}

// removeOrphan asks the node to remove a directory that it listed.
func (v *volumeCommand) removeOrphan(cmd *cobra.Command, c client.Client, list []orphan, name string) error {
	at := slices.IndexFunc(list, func(o orphan) bool { return o.String() == name })
	if at < 0 {
		return fmt.Errorf("there is no orphan %q: `ebb volume orphans` lists them", name)
	}
	asked := strings.TrimPrefix(name, list[at].Node+"/")
	listed := func(s string) bool {
		return slices.ContainsFunc(list, func(o orphan) bool { return o.String() == list[at].Node+"/"+s })
	}
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: list[at].Node}}
	err := kubeclient.Change(cmd.Context(), c, n, func(n *v1alpha1.Node) (bool, error) {
		all := slices.DeleteFunc(strings.Split(n.Annotations[v1alpha1.RemoveOrphansAnnotation], ","), func(s string) bool { return !listed(s) || s == asked })
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.RemoveOrphansAnnotation, strings.Join(append(all, asked), ","))
		return true, nil
	})
	if err != nil {
		return err
	}
	return v.out.print(cmd.OutOrStdout(), list[at], func() string { return fmt.Sprintf("node %s removes %s\n", n.Name, asked) })
}

func newReplicaRemove() *cobra.Command {
	var v volumeCommand
	var yes bool
	cmd := &cobra.Command{
		Use:   "rm REPLICA",
		Short: "Remove one replica of a volume and its data; the last healthy one stays",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return v.onReplica(cmd, args[0], func(c client.Client, r *v1alpha1.Replica) (string, error) {
				if err := confirm(cmd, yes, fmt.Sprintf("This deletes replica %s of volume %s on node %s.", r.Name, r.Spec.VolumeName, r.Spec.NodeName)); err != nil {
					return "", err
				}
				return "is being removed", c.Delete(cmd.Context(), r, client.Preconditions{UID: &r.UID})
			})
		},
	}
	v.addFlags(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func newReplicaEvict() *cobra.Command {
	var v volumeCommand
	var cancel bool
	cmd := &cobra.Command{
		Use:   "evict REPLICA",
		Short: "Build another replica elsewhere, and then remove this one",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return v.onReplica(cmd, args[0], func(c client.Client, r *v1alpha1.Replica) (string, error) {
				said := "is to be evicted"
				if cancel {
					said = "stays"
				}
				return said, kubeclient.Change(cmd.Context(), c, r, func(r *v1alpha1.Replica) (bool, error) {
					metav1.SetMetaDataAnnotation(&r.ObjectMeta, v1alpha1.EvictAnnotation, "true")
					if cancel {
						delete(r.Annotations, v1alpha1.EvictAnnotation)
					}
					return true, nil
				})
			})
		},
	}
	v.addFlags(cmd)
	cmd.Flags().BoolVar(&cancel, "cancel", false, "cancel the eviction: the replica stays")
	return cmd
}

// onReplica does something with a replica, and prints it with what do returns.
func (v *volumeCommand) onReplica(cmd *cobra.Command, name string, do func(client.Client, *v1alpha1.Replica) (string, error)) error {
	c, err := v.client()
	if err != nil {
		return err
	}
	r := &v1alpha1.Replica{}
	err = c.Get(cmd.Context(), types.NamespacedName{Namespace: v.namespace, Name: name}, r)
	if kubeclient.IsMissing(err) {
		return fmt.Errorf("there is no replica %q in namespace %s: `ebb volume inspect VOLUME` lists them", name, v.namespace)
	}
	if err != nil {
		return err
	}
	said, err := do(c, r)
	if err != nil {
		return err
	}
	return v.out.print(cmd.OutOrStdout(), r, func() string { return "replica " + name + " " + said + "\n" })
}
