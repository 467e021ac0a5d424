package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/volume"
)

// setting is one value of Settings that people set by name.
type setting struct {
	name, alias string
	help        string
	get         func(*v1alpha1.SettingsSpec) string
	set         func(*v1alpha1.SettingsSpec, string) error
}

var settingsTable = []setting{
	{
		name: "nodeDrainPolicy", alias: "node-drain-policy", help: "when a node that has replicas of volumes may leave",
		get: func(s *v1alpha1.SettingsSpec) string { return string(s.NodeDrainPolicy) },
		set: func(s *v1alpha1.SettingsSpec, text string) error {
			s.NodeDrainPolicy = v1alpha1.NodeDrainPolicy(text)
			return nil
		},
	},
	{
		name: "onCordon", alias: "on-cordon", help: "on Kubernetes, when somebody other than Ebb cordons a node: Drain it, or only Hold it while work is on it",
		get: func(s *v1alpha1.SettingsSpec) string { return string(cmp.Or(s.OnCordon, v1alpha1.DrainOnCordon)) },
		set: func(s *v1alpha1.SettingsSpec, text string) error {
			s.OnCordon = v1alpha1.OnCordon(text)
			return nil
		},
	},
	{
		name: "volumes.replicaReplenishmentWait", alias: "replica-replenishment-wait", help: "how long a replica may be away with its node before another one is built in its place, or 0s",
		get: func(s *v1alpha1.SettingsSpec) string {
			return durationOr(s.Volumes.ReplicaReplenishmentWait, volume.DefaultReplenishmentWait)
		},
		set: func(s *v1alpha1.SettingsSpec, text string) error {
			return setDurationOrZero(&s.Volumes.ReplicaReplenishmentWait, text)
		},
	},
	{
		name: "volumes.rebuildBytesPerSecond", alias: "rebuild-bytes-per-second", help: "how fast one replica is built at most, such as 100Mi; 0 for as fast as it goes",
		get: func(s *v1alpha1.SettingsSpec) string {
			if s.Volumes.RebuildBytesPerSecond == nil {
				return "0"
			}
			return s.Volumes.RebuildBytesPerSecond.String()
		},
		set: func(s *v1alpha1.SettingsSpec, text string) error {
			q, err := resource.ParseQuantity(text)
			if err != nil || q.Sign() < 0 {
				return fmt.Errorf("%q is not a number of bytes such as 100Mi, or 0", text)
			}
			s.Volumes.RebuildBytesPerSecond = &q
			return nil
		},
	},
	{
		name: "drain.clientGrace", alias: "drain-client-grace", help: "how long clients of a volume may stay connected to a draining node, or 0s",
		get: func(s *v1alpha1.SettingsSpec) string {
			return durationOr(s.Drain.ClientGrace, volume.DefaultClientGrace)
		},
		set: func(s *v1alpha1.SettingsSpec, text string) error {
			return setDurationOrZero(&s.Drain.ClientGrace, text)
		},
	},
	{
		name: "drain.maintainerBatchSize", alias: "drain-maintainer-batch-size", help: "how many maintainers move off a node at the same time; 0 or less means 1",
		get: func(s *v1alpha1.SettingsSpec) string {
			if s.Drain.MaintainerBatchSize == nil {
				return "1"
			}
			return strconv.Itoa(int(*s.Drain.MaintainerBatchSize))
		},
		set: func(s *v1alpha1.SettingsSpec, text string) error {
			n, err := strconv.ParseInt(text, 10, 32)
			if err != nil {
				return fmt.Errorf("%q is not a whole number", text)
			}
			s.Drain.MaintainerBatchSize = new(int32(n))
			return nil
		},
	},
	{
		name: "drain.stalledAfter", alias: "drain-stalled-after", help: "how long a drain may make no progress before it is reported as stalled",
		get: func(s *v1alpha1.SettingsSpec) string { return durationOr(s.Drain.StalledAfter, 5*time.Minute) },
		set: func(s *v1alpha1.SettingsSpec, text string) error { return setDuration(&s.Drain.StalledAfter, text) },
	},
	{
		name: "drain.balanceAfter", alias: "drain-balance-after", help: "how long after the last drain work may be moved to balance the nodes",
		get: func(s *v1alpha1.SettingsSpec) string {
			return durationOr(s.Drain.BalanceAfter, fleet.DefaultBalanceAfter)
		},
		set: func(s *v1alpha1.SettingsSpec, text string) error { return setDuration(&s.Drain.BalanceAfter, text) },
	},
	{
		name: "drain.bootstrapTimeout", alias: "drain-bootstrap-timeout", help: "how long a maintainer may take to start before it is placed on another node",
		get: func(s *v1alpha1.SettingsSpec) string {
			return durationOr(s.Drain.BootstrapTimeout, changefeed.DefaultBootstrapTimeout)
		},
		set: func(s *v1alpha1.SettingsSpec, text string) error { return setDuration(&s.Drain.BootstrapTimeout, text) },
	},
	{
		name: "drain.historyLimit", alias: "drain-history-limit", help: "how many finished drains are kept",
		get: func(s *v1alpha1.SettingsSpec) string {
			if s.Drain.HistoryLimit == nil {
				return strconv.Itoa(drain.DefaultHistoryLimit)
			}
			return strconv.Itoa(int(*s.Drain.HistoryLimit))
		},
		set: func(s *v1alpha1.SettingsSpec, text string) error {
			n, err := strconv.ParseInt(text, 10, 32)
			if err != nil || n < 0 {
				return fmt.Errorf("%q is not a whole number of 0 or more", text)
			}
			s.Drain.HistoryLimit = new(int32(n))
			return nil
		},
	},
	{
		name: "drain.historyAge", alias: "drain-history-age", help: "how long a finished drain is kept, at least 1m",
		get: func(s *v1alpha1.SettingsSpec) string { return durationOr(s.Drain.HistoryAge, drain.DefaultHistoryAge) },
		set: func(s *v1alpha1.SettingsSpec, text string) error { return setDuration(&s.Drain.HistoryAge, text) },
	},
}

func durationOr(d *metav1.Duration, otherwise time.Duration) string {
	if d == nil {
		return otherwise.String()
	}
	return d.Duration.String()
}

func setDuration(to **metav1.Duration, text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not a duration such as 90s or 5m", text)
	}
	*to = &metav1.Duration{Duration: d}
	return nil
}

// setDurationOrZero is setDuration for what may be 0s.
func setDurationOrZero(to **metav1.Duration, text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a duration such as 90s or 5m, or 0s", text)
	}
	*to = &metav1.Duration{Duration: d}
	return nil
}

func newSettings() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "settings",
		Short: "Show or change the settings of the cluster",
		Long:  "Show or change the settings of the cluster.\n\n" + settingsHelp(),
		Example: `  ebb settings get
  ebb settings get drain.maintainerBatchSize
  ebb settings set drain.maintainerBatchSize=4 nodeDrainPolicy=block-for-eviction`,
	}
	cmd.AddCommand(newSettingsGet(), newSettingsSet())
	return cmd
}

func settingsHelp() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, s := range settingsTable {
		fmt.Fprintf(w, "  %s\t%s\n", s.name, s.help)
	}
	w.Flush()
	return strings.TrimRight(b.String(), "\n")
}

func newSettingsGet() *cobra.Command {
	var c cluster
	var out output
	cmd := &cobra.Command{
		Use:     "get [KEY]",
		Short:   "Show the settings, or one of them",
		Example: "  ebb settings get\n  ebb settings get nodeDrainPolicy",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			settings := &v1alpha1.Settings{}
			if err := cl.Get(cmd.Context(), types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
				return err
			}
			if len(args) == 0 {
				return out.print(cmd.OutOrStdout(), settings.Spec, func() string { return settingsText(&settings.Spec) })
			}
			s, err := findSetting(args[0])
			if err != nil {
				return err
			}
			value := s.get(&settings.Spec)
			return out.print(cmd.OutOrStdout(), map[string]string{s.name: value}, func() string { return value + "\n" })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	return cmd
}

func newSettingsSet() *cobra.Command {
	var c cluster
	var out output
	cmd := &cobra.Command{
		Use:     "set KEY=VALUE...",
		Short:   "Change settings; if one value is invalid, none is changed",
		Long:    "Change settings; if one value is invalid, none is changed.\n\n" + settingsHelp(),
		Example: "  ebb settings set drain.maintainerBatchSize=4",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			settings, err := setSettings(cmd.Context(), cl, args)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), settings.Spec, func() string { return settingsText(&settings.Spec) })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	return cmd
}

func setSettings(ctx context.Context, c client.Client, args []string) (*v1alpha1.Settings, error) {
	settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
	return settings, kubeclient.Change(ctx, c, settings, func(settings *v1alpha1.Settings) (bool, error) {
		for _, arg := range args {
			key, value, ok := strings.Cut(arg, "=")
			if !ok {
				return false, fmt.Errorf("%q is not KEY=VALUE", arg)
			}
			s, err := findSetting(key)
			if err != nil {
				return false, err
			}
			if err := s.set(&settings.Spec, value); err != nil {
				return false, fmt.Errorf("setting %s: %w", s.name, err)
			}
		}
		return true, nil
	})
}

func findSetting(key string) (setting, error) {
	i := slices.IndexFunc(settingsTable, func(s setting) bool { return key == s.name || key == s.alias })
	if i < 0 {
		var names []string
		for _, s := range settingsTable {
			names = append(names, s.name)
		}
		return setting{}, fmt.Errorf("there is no setting %q: use one of %s", key, strings.Join(names, ", "))
	}
	return settingsTable[i], nil
}

func settingsText(spec *v1alpha1.SettingsSpec) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, s := range settingsTable {
		fmt.Fprintf(w, "%s\t%s\n", s.name, s.get(spec))
	}
	w.Flush()
	return b.String()
}
