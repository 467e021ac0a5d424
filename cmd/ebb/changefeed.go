package main

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/kind"
)

func newChangefeed() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "changefeed",
		Aliases: []string{"cf"},
		Short:   "Create, list, pause, resume and remove changefeeds",
	}
	cmd.AddCommand(newChangefeedCreate(), newChangefeedList("list"),
		newChangefeedState("pause", "Pause a changefeed; when it is resumed it continues at its position", v1alpha1.ChangefeedPause),
		newChangefeedState("resume", "Resume a paused or failed changefeed", v1alpha1.ChangefeedRun), newChangefeedRemove())
	return cmd
}

func newChangefeedCreate() *cobra.Command {
	var c cluster
	var out output
	cf := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: kind.DefaultNamespace}}
	var ddl bool
	var sourceSecret, sinkSecret string
	cmd := &cobra.Command{
		Use:   "create NAME --source URL --sink URL",
		Short: "Create a changefeed",
		Long: `Create a changefeed. Sources are mysql://USER@HOST:PORT, a MariaDB server, and datagen://?tables=N&rate=R&seed=S, which generates
changes. Sinks are mysql://USER@HOST:PORT, file:///DIRECTORY, which must be the same directory on every node, and blackhole://, which
counts changes and discards them.`,
		Example: `  ebb changefeed create demo --source 'datagen://?tables=100&rate=1000' --sink blackhole://`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cf.Name, cf.Spec.DDL = args[0], &ddl
			cf.Spec.SourcePasswordSecretRef, cf.Spec.SinkPasswordSecretRef = passwordSecret(sourceSecret), passwordSecret(sinkSecret)
			if err := changefeed.Validate(&cf.Spec); err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			if err := cl.Create(cmd.Context(), cf); err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), cf, func() string { return "changefeed " + cf.Name + " created\n" })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	fs := cmd.Flags()
	addNamespace(fs, &cf.Namespace, kind.DefaultNamespace, "namespace of the changefeed")
	fs.StringVar(&cf.Spec.Source, "source", "", "URL of the source (required)")
	fs.StringVar(&cf.Spec.SourcePasswordFile, "source-password-file", "", "file with the password of the source, by its name in the --credentials-dir of the nodes")
	fs.StringVar(&sourceSecret, "source-password-secret", "", "Secret with the password of the source, NAME or NAME/KEY, in the namespace of the changefeed (default key password)")
	fs.StringVar(&cf.Spec.Sink, "sink", "", "URL of the sink (required)")
	fs.StringVar(&cf.Spec.SinkPasswordFile, "sink-password-file", "", "file with the password of the sink, by its name in the --credentials-dir of the nodes")
	fs.StringVar(&sinkSecret, "sink-password-secret", "", "Secret with the password of the sink, NAME or NAME/KEY, in the namespace of the changefeed (default key password)")
	fs.StringArrayVar(&cf.Spec.Filter, "filter", nil, "tables to replicate: schema.table with the wildcards * and ?, or !schema.table to exclude tables; may be repeated")
	fs.StringVar(&cf.Spec.StartPosition, "start-position", "", "GTID, or its sequence number, after which to begin (default: the newest)")
	fs.BoolVar(&ddl, "ddl", true, "replicate DDL too")
	_ = cmd.MarkFlagRequired("source")
	_ = cmd.MarkFlagRequired("sink")
	return cmd
}

// passwordSecret is a reference written as NAME or NAME/KEY.
func passwordSecret(text string) *v1alpha1.PasswordSecretRef {
	if text == "" {
		return nil
	}
	name, key, _ := strings.Cut(text, "/")
	return &v1alpha1.PasswordSecretRef{Name: name, Key: key}
}

func newChangefeedList(use string) *cobra.Command {
	var c cluster
	var out output
	var namespace string
	cmd := &cobra.Command{
		Use:   use,
		Short: "Show changefeeds: their maintainers, checkpoints, and the dispatchers of each node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			list, err := changefeed.ReadStatus(cmd.Context(), cl, namespace, time.Now())
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), list, func() string { return changefeedsText(list, time.Now()) })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	addNamespace(cmd.Flags(), &namespace, "", "only this namespace (default all)")
	return cmd
}

func changefeedsText(list []changefeed.Status, now time.Time) string {
	if len(list) == 0 {
		return "no changefeeds\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "CHANGEFEED\tSTATE\tMAINTAINER\tTABLES\tDISPATCHERS\tCHECKPOINT\tWRITTEN LAG\tAGE\tNOTE")
	for _, s := range list {
		lag := "-"
		if s.LagSeconds != nil {
			lag = strconv.FormatFloat(*s.LagSeconds, 'f', 1, 64) + "s"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\n", kind.NameIn(s.Namespace, s.Name), s.State, orDash(s.Maintainer), s.Tables, counts(s.Dispatchers), s.Checkpoint, lag,
			duration.HumanDuration(now.Sub(s.Created.Time)), s.Note())
	}
	w.Flush()
	return trimLines(b.String())
}

func newChangefeedState(use, short string, state v1alpha1.ChangefeedWish) *cobra.Command {
	var c cluster
	var out output
	var namespace string
	cmd := &cobra.Command{
		Use:   use + " NAME",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			cf, err := changefeed.SetState(cmd.Context(), cl, types.NamespacedName{Namespace: namespace, Name: args[0]}, state)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), cf, func() string { return fmt.Sprintf("changefeed %s: %s\n", cf.Name, state) })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	addNamespace(cmd.Flags(), &namespace, kind.DefaultNamespace, "namespace of the changefeed")
	return cmd
}

func newChangefeedRemove() *cobra.Command {
	var c cluster
	var out output
	var namespace string
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a changefeed; what it has written to its sink stays",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			cf := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: args[0]}}
			if err := cl.Delete(cmd.Context(), cf); err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), map[string]string{"removed": args[0]}, func() string { return "changefeed " + args[0] + " removed\n" })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	addNamespace(cmd.Flags(), &namespace, kind.DefaultNamespace, "namespace of the changefeed")
	return cmd
}
