package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/kind"
)

func newChangefeed() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "changefeed",
		Aliases: []string{"cf"},
		Short:   "Create, list, pause, resume and remove changefeeds, and skip a transaction",
	}
	cmd.AddCommand(newChangefeedCreate(), newChangefeedList("list"),
		newChangefeedPause(), newChangefeedResume(), newChangefeedRemove(), newChangefeedSkip())
	return cmd
}

func newChangefeedCreate() *cobra.Command {
	var c cluster
	var out output
	cf := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: kind.DefaultNamespace}}
	var ddl bool
	var sourceSecret, sinkSecret string
	var copies bool
	var rate int64
	var routes, columns, rows []string
	cmd := &cobra.Command{
		Use:   "create NAME --source URL --sink URL",
		Short: "Create a changefeed",
		Long: `Create a changefeed.

Sources:
  mysql://USER@HOST:PORT              a MariaDB server
  datagen://?tables=N&rate=R&seed=S   generated changes

Sinks:
  mysql://USER@HOST:PORT              a MariaDB server
  file:///DIRECTORY                   JSON lines, in a directory that is the same on every node
  blackhole://                        counts changes and discards them`,
		Example: `  ebb changefeed create demo --source 'datagen://?tables=100&rate=1000' --sink blackhole://
  ebb changefeed create shop --snapshot --filter 'shop.*' --source mysql://ebb@db1:3306 --source-password-file db1 --sink mysql://ebb@db2:3306 --sink-password-file db2`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cf.Name, cf.Spec.DDL = args[0], &ddl
			cf.Spec.SourcePasswordSecretRef, cf.Spec.SinkPasswordSecretRef = passwordSecret(sourceSecret), passwordSecret(sinkSecret)
			if copies {
				cf.Spec.Snapshot = &v1alpha1.ChangefeedSnapshot{RowsPerSecond: rate}
			} else if rate != 0 {
				return fmt.Errorf("--snapshot-rows-per-second needs --snapshot")
			}
			for _, text := range routes {
				r, err := parseRoute(text)
				if err != nil {
					return err
				}
				cf.Spec.Routing = append(cf.Spec.Routing, r)
			}
			var err error
			if cf.Spec.LeaveOut, err = parseLeaveOut(columns, rows); err != nil {
				return err
			}
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
	fs.StringArrayVar(&cf.Spec.Filter, "filter", nil, "tables to replicate: schema.table with the wildcards * and ?, or !schema.table to exclude tables; can be repeated")
	fs.StringArrayVar(&routes, "route", nil, "name of tables at the sink: MATCH=SCHEMA or MATCH=SCHEMA.TABLE, such as 'shop.*=crm.{table}'; {schema} and {table} stand for the names at the source; can be repeated, and the first match decides")
	fs.StringArrayVar(&columns, "leave-out-column", nil, "column to leave out at the sink, MATCH.COLUMN, such as 'shop.users.password'; can be repeated")
	fs.StringArrayVar(&rows, "leave-out-rows", nil, "rows to leave out at the sink, MATCH=EXPRESSION, such as 'shop.orders=region = 7'; can be repeated")
	fs.StringVar(&cf.Spec.StartPosition, "start-position", "", "GTID, or its sequence number, after which to begin (default: the newest)")
	fs.BoolVar(&ddl, "ddl", true, "replicate DDL too")
	fs.BoolVar(&copies, "snapshot", false, "copy what the source has first: create its tables at the sink and fill them")
	fs.Int64Var(&rate, "snapshot-rows-per-second", 0, "how many rows each node copies per second at most; 0 for no limit")
	_ = cmd.MarkFlagRequired("source")
	_ = cmd.MarkFlagRequired("sink")
	return cmd
}

// parseRoute parses a route written as MATCH=SCHEMA or MATCH=SCHEMA.TABLE.
func parseRoute(text string) (v1alpha1.ChangefeedRoute, error) {
	match, target, ok := strings.Cut(text, "=")
	if !ok || match == "" || target == "" {
		return v1alpha1.ChangefeedRoute{}, fmt.Errorf("--route %q: use MATCH=SCHEMA or MATCH=SCHEMA.TABLE, for instance 'shop.*=crm.{table}'", text)
	}
	schema, table, _ := strings.Cut(target, ".")
	return v1alpha1.ChangefeedRoute{Match: match, Schema: schema, Table: table}, nil
}

// parseLeaveOut parses columns written as MATCH.COLUMN and rows written as MATCH=EXPRESSION.
func parseLeaveOut(columns, rows []string) (list []v1alpha1.ChangefeedLeaveOut, err error) {
	for _, text := range columns {
		at := strings.LastIndexByte(text, '.')
		if at < 0 || !strings.Contains(text[:at], ".") || at+1 == len(text) {
			return nil, fmt.Errorf("--leave-out-column %q: use MATCH.COLUMN, for instance 'shop.users.password'", text)
		}
		match, column := text[:at], text[at+1:]
		i := slices.IndexFunc(list, func(l v1alpha1.ChangefeedLeaveOut) bool { return l.Match == match })
		if i < 0 {
			i, list = len(list), append(list, v1alpha1.ChangefeedLeaveOut{Match: match})
		}
		list[i].Columns = append(list[i].Columns, column)
	}
	for _, text := range rows {
		match, expression, ok := strings.Cut(text, "=")
		if !ok || match == "" || strings.TrimSpace(expression) == "" {
			return nil, fmt.Errorf("--leave-out-rows %q: use MATCH=EXPRESSION, for instance 'shop.orders=region = 7'", text)
		}
		list = append(list, v1alpha1.ChangefeedLeaveOut{Match: match, Rows: strings.TrimSpace(expression)})
	}
	return list, nil
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
			return out.print(cmd.OutOrStdout(), list, func() string { return changefeedsText(list, c.now()) })
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

func newChangefeedState(use, short string, state v1alpha1.ChangefeedWish, set func(context.Context, client.Client, types.NamespacedName) (*v1alpha1.Changefeed, error)) *cobra.Command {
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
			cf, err := set(cmd.Context(), cl, types.NamespacedName{Namespace: namespace, Name: args[0]})
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

// newChangefeedResume makes the command that resumes a changefeed, at its checkpoint or after a later transaction.
func newChangefeedResume() *cobra.Command {
	var gtid string
	var leaveOut bool
	cmd := newChangefeedState("resume", "Resume a paused or failed changefeed", v1alpha1.ChangefeedRun, func(ctx context.Context, cl client.Client, key types.NamespacedName) (*v1alpha1.Changefeed, error) {
		switch {
		case gtid != "":
			return changefeed.ResumeFrom(ctx, cl, key, gtid, leaveOut)
		case leaveOut:
			return nil, fmt.Errorf("--leave-out-transactions needs --from")
		}
		return changefeed.SetState(ctx, cl, key, v1alpha1.ChangefeedRun)
	})
	cmd.Flags().StringVar(&gtid, "from", "", "GTID after which to continue, instead of after the checkpoint; it must be after the checkpoint")
	cmd.Flags().BoolVar(&leaveOut, "leave-out-transactions", false, "with --from: leave out the transactions in between, with their rows and DDL")
	return cmd
}

// newChangefeedPause makes the command that pauses a changefeed.
func newChangefeedPause() *cobra.Command {
	return newChangefeedState("pause", "Pause a changefeed; when it is resumed it continues at its position", v1alpha1.ChangefeedPause, func(ctx context.Context, cl client.Client, key types.NamespacedName) (*v1alpha1.Changefeed, error) {
		return changefeed.SetState(ctx, cl, key, v1alpha1.ChangefeedPause)
	})
}

func newChangefeedSkip() *cobra.Command {
	var c cluster
	var out output
	var namespace, gtid string
	cmd := &cobra.Command{
		Use:   "skip NAME --gtid GTID",
		Short: "Leave out one transaction of the source when a paused or failed changefeed is resumed",
		Long: `Leave out one transaction of the source, with its rows and its DDL, when a paused or failed changefeed is resumed. First
change the tables at the sink by hand to what they would be after the transaction, as far as later changes need that. Tables that have passed the
transaction keep what it changed.`,
		Example: `  ebb changefeed skip shop --gtid 0-1-5713`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			cf, err := changefeed.Skip(cmd.Context(), cl, types.NamespacedName{Namespace: namespace, Name: args[0]}, gtid)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), cf, func() string {
				return fmt.Sprintf("changefeed %s: GTID %s will be left out; run 'ebb changefeed resume %s'\n", cf.Name, gtid, cf.Name)
			})
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	addNamespace(cmd.Flags(), &namespace, kind.DefaultNamespace, "namespace of the changefeed")
	cmd.Flags().StringVar(&gtid, "gtid", "", "GTID of the transaction (required)")
	_ = cmd.MarkFlagRequired("gtid")
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
