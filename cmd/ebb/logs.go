package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/httpapi"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

const (
	// movePoll is how often `ebb logs -f` checks whether the program has moved.
	movePoll = time.Second
	// longestLine is how much of an unfinished line is buffered before it is printed.
	longestLine = 64 << 10
)

// logsFlags are the flags of `ebb logs`.
type logsFlags struct {
	cluster   cluster
	out       output
	namespace string
	node      string
	tail      int
	follow    bool
}

func newLogs() *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Show the output of a deployment or daemon",
		Long: `Show the standard output and standard error of a deployment or daemon, from the nodes on which it runs. Each node keeps the output
until the object is deleted; --node shows the output that a node has kept of a program that has moved away.

If the program is on several nodes, or with -o json, each line names its node. Ctrl-C ends -f.`,
		Example: `  ebb logs hello -f
  ebb logs hello --tail 20
  ebb logs heartbeat --node n2 -n monitoring`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	f.cluster.addFlags(fs)
	f.cluster.addTokenFlag(fs)
	f.out.addFlag(fs)
	addNamespace(fs, &f.namespace, kind.DefaultNamespace, "namespace of the deployment")
	fs.BoolVarP(&f.follow, "follow", "f", false, "follow the output")
	fs.IntVar(&f.tail, "tail", -1, "number of lines to show from the end of each node's log; -1 for all")
	fs.StringVar(&f.node, "node", "", "show only the output on this node, where the program runs or ran earlier")
	return cmd
}

func addNamespace(f *pflag.FlagSet, namespace *string, value, usage string) {
	f.StringVarP(namespace, "namespace", "n", value, usage)
}

func (f *logsFlags) run(cmd *cobra.Command, name string) error {
	if f.tail < -1 {
		return fmt.Errorf("--tail %d: use a number of lines, 0 or more; omit it for the whole log", f.tail)
	}
	ctx, key := cmd.Context(), types.NamespacedName{Namespace: f.namespace, Name: name}
	c, err := f.cluster.client()
	if err != nil {
		return err
	}
	nodes, err := f.nodes(ctx, c, key)
	if err != nil {
		return err
	}
	api, err := f.cluster.api()
	if err != nil {
		return err
	}
	r := &logReader{flags: f, key: key, client: c, api: api, out: &linePrinter{w: cmd.OutOrStdout(), json: f.out != "", prefix: len(nodes) > 1}}
	if !f.follow {
		return r.read(ctx, nodes)
	}
	return r.follow(ctx, nodes, cmd.ErrOrStderr())
}

// nodes are the ones to ask, by name.
func (f *logsFlags) nodes(ctx context.Context, c client.Client, key types.NamespacedName) ([]string, error) {
	if f.node != "" {
		return []string{f.node}, nil
	}
	d, err := getDeployment(ctx, c, key)
	if err != nil {
		return nil, err
	}
	nodes := nodesOf(d)
	if len(nodes) == 0 {
		return nil, fmt.Errorf("%s %s runs on no node%s: `ebb logs %s --node NODE` shows the output that an earlier node has kept", d.Spec.Type, displayName(d), whyNowhere(d), arguments(d))
	}
	return nodes, nil
}

func getDeployment(ctx context.Context, c client.Client, key types.NamespacedName) (*v1alpha1.Deployment, error) {
	d := &v1alpha1.Deployment{}
	err := c.Get(ctx, key, d)
	if kubeclient.IsMissing(err) {
		return nil, fmt.Errorf("there is no deployment or daemon %q in namespace %q: `ebb status deployments` lists all", key.Name, key.Namespace)
	}
	return d, err
}

// nodesOf returns the nodes on which processes of a program may run.
func nodesOf(d *v1alpha1.Deployment) []string {
	var nodes []string
	if holder := d.Holder().Node; holder != "" {
		nodes = append(nodes, holder)
	}
	for i := range d.Status.Nodes {
		nodes = append(nodes, d.Status.Nodes[i].Node)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// whyNowhere returns the reason in the object's conditions why it runs nowhere, if there is one.
func whyNowhere(d *v1alpha1.Deployment) string {
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
	if c == nil || c.Message == "" {
		return ""
	}
	return fmt.Sprintf(" (%s: %s)", c.Reason, strings.TrimSuffix(c.Message, "."))
}

// logReader reads the logs of one program.
type logReader struct {
	flags  *logsFlags
	key    types.NamespacedName
	client client.Client
	api    *httpapi.Client
	out    *linePrinter
}

// read prints the log of each node, one after the other, and continues if a node does not answer.
func (r *logReader) read(ctx context.Context, nodes []string) error {
	var failed []error
	for _, node := range nodes {
		if err := r.copy(ctx, node); err != nil {
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			return exitError(exitInterrupted)
		}
	}
	return joined(failed)
}

// follow prints and follows the log of each node, until all streams have ended or the user presses Ctrl-C.
func (r *logReader) follow(ctx context.Context, nodes []string, errs io.Writer) error {
	results := make(chan error, len(nodes))
	for _, node := range nodes {
		go func() {
			err := r.copy(ctx, node)
			if err == nil && ctx.Err() == nil {
				err = fmt.Errorf("node %s stopped sending the log: the node stopped or %s was deleted", node, r.key)
			}
			results <- err
		}()
	}
	watching, stop := context.WithCancel(ctx)
	var watched sync.WaitGroup
	if r.flags.node == "" {
		watched.Go(func() { r.reportMoves(watching, nodes, errs) })
	}
	var failed []error
	for range nodes {
		if err := <-results; err != nil {
			failed = append(failed, err)
		}
	}
	stop()
	watched.Wait()
	if ctx.Err() != nil {
		return nil // the user pressed Ctrl-C
	}
	return joined(failed)
}

// reportMoves prints a note when the program has moved to a node whose log is not followed.
func (r *logReader) reportMoves(ctx context.Context, nodes []string, errs io.Writer) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(movePoll):
		}
		d := &v1alpha1.Deployment{}
		if r.client.Get(ctx, r.key, d) != nil {
			continue // the streams report that themselves
		}
		for _, node := range nodesOf(d) {
			if !slices.Contains(nodes, node) {
				nodes = append(nodes, node)
				fmt.Fprintf(errs, "ebb: %s has moved to %s: follow it there with `ebb logs %s --node %s -f`\n", displayName(d), node, arguments(d), node)
			}
		}
	}
}

// copy prints the log of one node.
func (r *logReader) copy(ctx context.Context, node string) error {
	base, err := r.address(ctx, node)
	if err != nil {
		return err
	}
	query := url.Values{"follow": {strconv.FormatBool(r.flags.follow)}}
	if r.flags.tail >= 0 {
		query.Set("tail", strconv.Itoa(r.flags.tail))
	}
	path := fmt.Sprintf("/api/v2/deployments/%s/%s/logs", url.PathEscape(r.key.Namespace), url.PathEscape(r.key.Name))
	body, err := r.api.Stream(ctx, base, path, query)
	switch {
	case httpapi.CodeOf(err) != "":
		return err
	case err != nil:
		return fmt.Errorf("node %s does not answer: %w; `ebb status` shows its state", node, err)
	}
	defer body.Close()
	if err := r.out.copy(node, body); err != nil && ctx.Err() == nil {
		return fmt.Errorf("reading the log from node %s failed: %w", node, err)
	}
	return nil
}

// address is where a node's HTTP API is.
func (r *logReader) address(ctx context.Context, name string) (*url.URL, error) {
	n := &v1alpha1.Node{}
	if err := r.client.Get(ctx, types.NamespacedName{Name: name}, n); err != nil {
		if kubeclient.IsMissing(err) {
			err = fmt.Errorf("there is no node %q: `ebb status` lists the nodes", name)
		}
		return nil, err
	}
	if n.Status.HTTPAddress == "" {
		return nil, fmt.Errorf("node %s has not published the address of its HTTP API: check that it has joined", name)
	}
	return url.Parse(n.Status.HTTPAddress)
}

// joined returns several errors as one, in one line.
func joined(failed []error) error {
	if len(failed) == 0 {
		return nil
	}
	var texts []string
	for _, err := range failed {
		texts = append(texts, err.Error())
	}
	slices.Sort(texts)
	return errors.New(strings.Join(texts, "; "))
}

// linePrinter prints the lines of several logs, each whole.
type linePrinter struct {
	mu     sync.Mutex
	w      io.Writer
	json   bool
	prefix bool
}

func (p *linePrinter) copy(node string, from io.Reader) error {
	if !p.json && !p.prefix {
		_, err := io.Copy(p.w, from)
		return err
	}
	lines := bufio.NewReaderSize(from, longestLine)
	for {
		line, err := lines.ReadSlice('\n') // of a longer one, what fits
		if len(line) > 0 {
			if err := p.print(node, string(line)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

func (p *linePrinter) print(node, line string) error {
	line = strings.TrimSuffix(line, "\n")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.json {
		return json.NewEncoder(p.w).Encode(struct {
			Node string `json:"node"`
			Line string `json:"line"`
		}{node, line})
	}
	_, err := fmt.Fprintf(p.w, "%s: %s\n", node, line)
	return err
}
