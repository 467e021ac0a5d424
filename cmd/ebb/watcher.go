package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/pod"
)

// watcher follows one drain to its end.
type watcher struct {
	client client.Client
	drain  *v1alpha1.Drain
	lost   error // the error of the API, while it does not answer
	gone   bool  // the Drain was deleted
}

// sight is the result of reading the drain once.
type sight struct {
	drain *v1alpha1.Drain
	err   error
}

// look reads the drain once.
func look(ctx context.Context, c client.Client, d *v1alpha1.Drain) sight {
	seen := &v1alpha1.Drain{}
	err := c.Get(ctx, client.ObjectKeyFromObject(d), seen)
	return sight{seen, err}
}

// saw records what was read. An API that does not answer is reported, and not fatal: the drain continues without us.
func (w *watcher) saw(s sight) {
	w.lost = s.err
	switch {
	case kubeclient.IsMissing(s.err) || s.err == nil && s.drain.UID != w.drain.UID:
		w.gone = true
	case s.err == nil:
		w.drain = s.drain
	}
}

func (w *watcher) over() bool { return w.gone || w.drain.Status.Phase.Final() }

const stoppedWatching = "stopped watching; the drain continues: `ebb explain %s` shows its progress\n"

// print prints one line for each change, for logs and pipes.
func (w *watcher) print(ctx context.Context, errs, out io.Writer, lines bool) error {
	said := ""
	var advised []string
	for {
		w.saw(look(ctx, w.client, w.drain))
		line := w.line()
		if ctx.Err() != nil {
			fmt.Fprintf(errs, stoppedWatching, w.drain.Spec.NodeName)
			return exitError(exitInterrupted)
		}
		if lines && line != said {
			fmt.Fprintln(out, line)
			said = line
		}
		if advice := w.advice(); lines && !slices.Equal(advice, advised) {
			for _, text := range advice {
				if !slices.Contains(advised, text) {
					fmt.Fprintln(out, "  "+text)
				}
			}
			advised = advice
		}
		if w.over() {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(drainPoll):
		}
	}
}

// line describes the progress of the drain in one line. It contains no times, so that it changes only with the drain.
func (w *watcher) line() string {
	d := w.drain
	node := d.Spec.NodeName
	if w.gone {
		return fmt.Sprintf("%s: the Drain object was deleted", node)
	}
	if w.lost != nil {
		return fmt.Sprintf("%s: the API does not answer; the drain continues", node)
	}
	end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	switch {
	case end == nil && d.Status.Pods != nil && len(d.Status.Pods.Blockers) > 0:
		return fmt.Sprintf("%s: %s", node, pod.Sentence(d.Status.Pods.Blockers[0], time.Now()))
	case d.Status.Phase == "" || end == nil:
		return fmt.Sprintf("%s: waiting for the coordinator's decision", node)
	case d.Status.Phase == v1alpha1.DrainComplete && d.Status.StartedAt != nil:
		return fmt.Sprintf("%s: %s It took %s.", node, end.Message, d.Status.FinishedAt.Sub(d.Status.StartedAt.Time))
	case d.Status.Phase == v1alpha1.DrainPending && d.Status.Pods != nil:
		return fmt.Sprintf("%s: %s Meanwhile its pods leave: %s.", node, end.Message, pod.Progress(d.Status.Pods))
	case d.Status.Phase.Final() || d.Status.Phase == v1alpha1.DrainPending:
		return fmt.Sprintf("%s: %s", node, end.Message)
	}
	line := fmt.Sprintf("%s: %s, %s", node, d.Status.Phase, kinds.Works().Summary(d.Status.Remaining))
	for _, g := range drain.Groups(d.Status.Blockers) {
		line += "; " + g.String()
	}
	return line
}

// advice is what is known of each blocker: how far it is, when it ends by itself, and what a person can do.
func (w *watcher) advice() []string {
	var all []string
	if w.over() || w.lost != nil {
		return nil
	}
	for _, g := range drain.Groups(w.drain.Status.Blockers) {
		all = append(all, g.Advice()...)
	}
	return all
}

// show draws the drain in a terminal until it has ended or the user quits.
func (w *watcher) show(ctx context.Context) error {
	m := &model{watcher: w, ctx: ctx}
	if _, err := tea.NewProgram(m, tea.WithContext(ctx)).Run(); err != nil && ctx.Err() == nil {
		return err
	}
	if !w.over() {
		fmt.Printf(stoppedWatching, w.drain.Spec.NodeName)
		return exitError(exitInterrupted)
	}
	fmt.Println(w.line())
	return nil
}

// model is the live view.
type model struct {
	watcher *watcher
	ctx     context.Context
	width   int
}

// poll reads the drain; it runs concurrently with the view and shares nothing with it.
func (m *model) poll() tea.Cmd {
	c, d := m.watcher.client, m.watcher.drain
	return func() tea.Msg { return look(m.ctx, c, d) }
}

// again requests the next poll.
type again struct{}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.poll() }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width = msg.Width
	case tea.KeyPressMsg:
		if s := msg.String(); s == "ctrl+c" || s == "q" {
			return m, tea.Quit
		}
	case again:
		return m, m.poll()
	case sight:
		m.watcher.saw(msg)
		if m.watcher.over() {
			return m, tea.Quit
		}
		return m, tea.Tick(drainPoll, func(time.Time) tea.Msg { return again{} })
	}
	return m, nil
}

// View implements tea.Model.
func (m *model) View() tea.View {
	if m.watcher.over() {
		return tea.NewView("")
	}
	return tea.NewView(drawDrain(m.watcher.drain, m.watcher.lost, time.Now(), m.width))
}

// drawDrain draws a bar for each kind, and the blockers.
func drawDrain(d *v1alpha1.Drain, lost error, now time.Time, width int) string {
	var b strings.Builder
	phase := string(d.Status.Phase)
	if phase == "" {
		phase = "waiting for the coordinator's decision"
	}
	fmt.Fprintf(&b, "Draining %s: %s", d.Spec.NodeName, phase)
	if d.Status.StartedAt != nil {
		fmt.Fprintf(&b, ", %s", now.Sub(d.Status.StartedAt.Time).Round(time.Second))
		if d.Spec.Deadline != nil {
			fmt.Fprintf(&b, " of %s", d.Spec.Deadline.Duration)
		}
	}
	if d.Status.Stage != "" {
		fmt.Fprintf(&b, ", %s", d.Status.Stage)
	}
	b.WriteString("\n")
	kinds := slices.Sorted(maps.Keys(d.Status.Initial))
	for _, kind := range kinds {
		b.WriteString(bar(kind, d.Status.Initial[kind], d.Status.Remaining[kind], max(10, min(40, width-40))) + "\n")
	}
	for _, g := range drain.Groups(d.Status.Blockers) {
		fmt.Fprintf(&b, "\n%s, for %s\n", g, now.Sub(g.Since.Time).Round(time.Second))
		for _, advice := range g.Advice() {
			fmt.Fprintf(&b, "  %s\n", advice)
		}
	}
	if lost != nil {
		b.WriteString("\nThe API does not answer; the drain continues.\n")
	}
	b.WriteString("\nCtrl-C stops watching; the drain continues.\n")
	return b.String()
}

// bar draws how much of one kind has left.
func bar(kind string, initial, left int64, width int) string {
	total := max(initial, left, 1)
	done := int(int64(width) * (total - left) / total)
	return fmt.Sprintf("  %-14s %s%s %d of %d left", kind, strings.Repeat("█", done), strings.Repeat("░", width-done), left, max(initial, left))
}
