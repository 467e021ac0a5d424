package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestCommandLine(t *testing.T) {
	beside(t, light)
	c := startCluster(t, testenv.Ebb(t), 2)
	c.awaitLeader("")
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"status", statusCommand},
		{"cordon and uncordon", cordonCommands},
		{"settings", settingsCommands},
		{"apply", applyCommand},
		{"every command has help and examples", helpTexts},
		{"errors name the thing and the remedy", errorTexts},
		{"the HTTP API", httpAPI},
		{"metrics", metricsServed},
		{"a node on another machine", anotherMachine},
		{"secrets are nobody else's", secretFiles},
		{"an API server that cannot start is told of", portInUse},
	} {
		t.Run(step.name, func(t *testing.T) {
			c.t = t
			step.run(t, c)
		})
	}
	c.t = t
}

func statusCommand(t *testing.T, c *cluster) {
	leader := c.awaitLeader("")
	text := c.must("status")
	if want := "2 nodes, coordinator: " + leader + "\n"; !strings.HasPrefix(text, want) {
		t.Errorf("status:\n%s\nwant it to begin with %q", text, want)
	}
	status := decode[struct {
		Coordinator string
		Nodes       []struct {
			Name, Liveness, Ready string
			Epoch                 int64
			Coordinator           bool
		}
	}](t, c.must("status", "-o", "json"))
	if status.Coordinator != leader || len(status.Nodes) != 2 || status.Nodes[0].Name != "n1" || status.Nodes[0].Liveness != "Alive" || status.Nodes[0].Ready != "True" || status.Nodes[0].Epoch != c.record("n1").Epoch {
		t.Errorf("status: %+v", status)
	}
}

func cordonCommands(t *testing.T, c *cluster) {
	for _, step := range []struct{ verb, want string }{
		{"cordon", "node n2 cordoned\n"},
		{"cordon", "node n2 already cordoned\n"},
		{"uncordon", "node n2 uncordoned\n"},
		{"uncordon", "node n2 already uncordoned\n"},
	} {
		if got := c.must(step.verb, "n2"); got != step.want {
			t.Errorf("ebb %s n2: %q, want %q", step.verb, got, step.want)
		}
		if got := c.node("n2").Spec.Cordoned; got != (step.verb == "cordon") {
			t.Errorf("after %s: cordoned is %v", step.verb, got)
		}
	}
}

func settingsCommands(t *testing.T, c *cluster) {
	want := `nodeDrainPolicy                    block-for-eviction
onCordon                           Drain
volumes.replicaReplenishmentWait   10m0s
volumes.rebuildBytesPerSecond      0
drain.clientGrace                  1m0s
drain.maintainerBatchSize          4
drain.stalledAfter                 5m0s
drain.balanceAfter                 30s
drain.bootstrapTimeout             30s
drain.historyLimit                 100
drain.historyAge                   168h0m0s
`
	if got := c.must("settings", "set", "drain-maintainer-batch-size=4", "nodeDrainPolicy=block-for-eviction"); got != want {
		t.Errorf("set:\n%s", got)
	}
	if got := c.must("settings", "get"); got != want {
		t.Errorf("get:\n%s", got)
	}
	if got := c.must("settings", "get", "drain.maintainerBatchSize"); got != "4\n" {
		t.Errorf("get one: %q", got)
	}
	if _, _, code := c.run("settings", "set", "drain.maintainerBatchSize=9", "nodeDrainPolicy=never"); code != 1 {
		t.Errorf("an unknown policy was accepted: exit %d", code)
	}
	if got := c.must("settings", "get"); got != want {
		t.Errorf("a refused change had an effect:\n%s", got)
	}
}

func applyCommand(t *testing.T, c *cluster) {
	good := "apiVersion: ebb.dev/v1alpha1\nkind: Settings\nmetadata: {name: cluster}\nspec: {drain: {maintainerBatchSize: 2}}\n"
	bad := "apiVersion: ebb.dev/v1alpha1\nkind: Node\nmetadata: {name: Not_A_Label}\n"
	file := filepath.Join(t.TempDir(), "manifests.yaml")
	if err := os.WriteFile(file, []byte(good+"---\n"+bad), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, code := c.run("apply", "-f", file)
	if code != 1 || !strings.Contains(errs, "nothing was applied: Node Not_A_Label: ") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if got := c.must("settings", "get", "drain.maintainerBatchSize"); got != "4\n" {
		t.Errorf("half of a refused file was applied: %q", got)
	}
	out, errs, code := c.runWith(strings.NewReader(good), "apply", "-f", "-")
	if code != 0 || out != "settings/cluster applied\n" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if got := c.must("settings", "get", "drain.maintainerBatchSize"); got != "2\n" {
		t.Errorf("after apply: %q", got)
	}
}

func helpTexts(t *testing.T, c *cluster) {
	for _, name := range []string{"up", "apiserver", "node", "credentials", "shim", "status", "status deployments", "logs", "drain", "explain", "apply", "cordon", "uncordon", "resign", "settings", "settings get", "settings set", "version"} {
		help := c.must(append(strings.Fields(name), "--help")...)
		if !strings.Contains(help, "Examples:\n  ") || !strings.Contains(help, "Usage:\n  ebb "+name) {
			t.Errorf("ebb %s --help:\n%s", name, help)
		}
	}
	if got := c.must("version"); !strings.HasPrefix(got, "ebb ") {
		t.Errorf("version: %q", got)
	}
	if v := decode[struct{ Version, Go string }](t, c.must("version", "-o", "json")); v.Version == "" || v.Go == "" {
		t.Errorf("version: %+v", v)
	}
}

func errorTexts(t *testing.T, c *cluster) {
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "kubeconfig"), []byte("a person's"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"cordon", "n9"}, "ebb: there is no node \"n9\": `ebb status` lists the nodes\n"},
		{[]string{"settings", "set", "speed=9"}, "ebb: there is no setting \"speed\": use one of nodeDrainPolicy, onCordon, volumes.replicaReplenishmentWait, volumes.rebuildBytesPerSecond, drain.clientGrace, drain.maintainerBatchSize, drain.stalledAfter, drain.balanceAfter, drain.bootstrapTimeout, drain.historyLimit, drain.historyAge\n"},
		{[]string{"settings", "set", "drain.maintainerBatchSize=many"}, "ebb: setting drain.maintainerBatchSize: \"many\" is not a whole number\n"},
		{[]string{"settings", "set", "volumes.rebuildBytesPerSecond=fast"}, "ebb: setting volumes.rebuildBytesPerSecond: \"fast\" is not a number of bytes such as 100Mi, or 0\n"},
		{[]string{"settings", "set", "drain.clientGrace=-1s"}, "ebb: setting drain.clientGrace: \"-1s\" is not a duration such as 90s or 5m, or 0s\n"},
		{[]string{"volume", "create", "v", "--size", "big"}, "ebb: --size \"big\" is not a size such as 10Gi\n"},
		{[]string{"volume", "create", "v", "--size", "4Mi", "--replicas", "0"}, "ebb: --replicas must be from 1 to 5\n"},
		{[]string{"volume", "create", "v", "--size", "4Mi", "--attach-to", "n9"}, "ebb: there is no node \"n9\": `ebb status` lists the nodes\n"},
		{[]string{"volume", "inspect", "v"}, "ebb: there is no volume \"v\" in namespace default: `ebb volume list` lists them\n"},
		{[]string{"volume", "orphans", "--remove", "v"}, "ebb: there is no orphan \"v\": `ebb volume orphans` lists them\n"},
		{[]string{"volume", "replica", "evict", "v-r1"}, "ebb: there is no replica \"v-r1\" in namespace default: `ebb volume inspect VOLUME` lists them\n"},
		{[]string{"status", "-o", "xml"}, "ebb: invalid argument \"xml\" for \"-o, --output\" flag: \"xml\" is not an output format: use json, or omit it\n"},
		{[]string{"node", "--name", "Bad_Name"}, "ebb: node name \"Bad_Name\" is not a DNS subdomain: use lower-case letters, digits, '-' and '.', at most 253 characters\n"},
		{[]string{"node", "--name", "n8", "--label", "zone"}, "ebb: --label \"zone\" is not key=value\n"},
		{[]string{"node", "--name", "n8", "--lease-fence", "9s"}, "ebb: lease timing: dead (8s) must be after fence (9s): programs have the time between to stop\n"},
		{[]string{"up", "--lease-duration", "11500ms", "--data-dir", t.TempDir()}, "ebb: lease timing: lost (11.5s) must be whole seconds: it is stored as leaseDurationSeconds\n"},
		{[]string{"up", "--nodes", "0", "--data-dir", t.TempDir()}, "ebb: --nodes 0: use 1 to 99\n"},
		{[]string{"up", "--data-dir", foreign}, "ebb: data directory " + foreign + ": Ebb did not write kubeconfig there and would replace it: set another directory with --data-dir, or move it away\n"},
		{[]string{"apiserver", "--data-dir", foreign}, "ebb: data directory " + foreign + ": Ebb did not write kubeconfig there and would replace it: set another directory with --data-dir, or move it away\n"},
		{[]string{"drain"}, "ebb: accepts 1 arg(s), received 0: use `ebb drain NODE [flags]`\n"},
		{[]string{"up", "--data-dir", string(c.dir)}, "ebb: a cluster already runs in " + string(c.dir) + ": stop it, or set another --data-dir\n"},
	} {
		if _, errs, code := c.run(tc.args...); code != 1 || errs != tc.want {
			t.Errorf("ebb %s: exit %d\n got %q\nwant %q", strings.Join(tc.args, " "), code, errs, tc.want)
		}
	}
	_, errs, code := c.run("node", "--name", "n1")
	if code != 1 || !strings.Contains(errs, "node n1: the node is already running on this machine") {
		t.Errorf("the same name twice: exit %d, %s", code, errs)
	}
}

// request asks a node's HTTP API.
func (c *cluster) request(t *testing.T, node, method, path, token string) (int, string) {
	t.Helper()
	ca, err := os.ReadFile(c.dir.CA())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(context.Background(), method, c.node(node).Status.HTTPAddress+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: transport, Timeout: patience}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func httpAPI(t *testing.T, c *cluster) {
	token, err := datadir.ReadToken(c.dir.Token())
	if err != nil {
		t.Fatal(err)
	}
	leader := c.awaitLeader("")
	follower := others([]string{"n1", "n2"}, leader)[0]
	for _, tc := range []struct {
		node, method, path, token string
		code                      int
		body                      string
	}{
		{leader, "GET", "/healthz", "", 200, "ok"},
		{follower, "GET", "/readyz", "", 200, "ok"},
		{leader, "POST", "/api/v2/owner/resign", "", 401, `{"error_code":"ErrUnauthorized","error_msg":"a valid bearer token is required: use the one in the file ` + "`token`" + ` of the data directory"}` + "\n"},
		{leader, "POST", "/api/v2/owner/resign", "wrong", 401, `{"error_code":"ErrUnauthorized","error_msg":"a valid bearer token is required: use the one in the file ` + "`token`" + ` of the data directory"}` + "\n"},
		{leader, "GET", "/api/v2/nothing", token, 404, `{"error_code":"ErrNotFound","error_msg":"there is no GET /api/v2/nothing"}` + "\n"},
		// A follower forwards to the coordinator.
		{follower, "POST", "/api/v2/owner/resign", token, 200, `{"resigned":"` + leader + `"}` + "\n"},
	} {
		if code, body := c.request(t, tc.node, tc.method, tc.path, tc.token); code != tc.code || body != tc.body {
			t.Errorf("%s %s on %s: %d %q, want %d %q", tc.method, tc.path, tc.node, code, body, tc.code, tc.body)
		}
	}
	if got := c.awaitLeader(leader); got != follower {
		t.Errorf("%s leads after %s resigned", got, leader)
	}
}

func metricsServed(t *testing.T, c *cluster) {
	leader := c.awaitLeader("")
	_, body := c.request(t, leader, "GET", "/metrics", "")
	for _, want := range []string{
		`ebb_node_liveness{liveness="Alive",node="` + leader + `"} 1`,
		`ebb_node_liveness{liveness="Draining",node="` + leader + `"} 0`,
		fmt.Sprintf(`ebb_node_epoch{node=%q} %d`, leader, c.record(leader).Epoch),
		`ebb_node_lease_age_seconds{node="` + leader + `"} `,
		`ebb_coordinator_election_changes_total{node="` + leader + `"} `,
		`ebb_coordinator_leading{node="` + leader + `"} 1`,
		"# HELP ebb_node_epoch ",
	} {
		if !strings.Contains(body, "\n"+want) {
			t.Errorf("metrics lack %q", want)
		}
	}
}

func anotherMachine(t *testing.T, c *cluster) {
	machine := filepath.Join(t.TempDir(), "machine")
	p := c.start("node", "--name", "n3", "--data-dir", machine)
	if code := p.awaitExit(t); code != 1 || !strings.Contains(p.out.String(), "node n3 has no credentials in ") {
		t.Errorf("exit %d: %s", code, p.out)
	}
	c.must("credentials", "n3", "--out", machine)
	node := c.startNode("n3", "--data-dir", machine, "--label", "zone=b")
	c.awaitReady("n3", 1)
	if got := c.node("n3").Labels["zone"]; got != "b" {
		t.Errorf("label zone: %q", got)
	}
	// The same name from a third place waits for as long as the second renews.
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	c.must("credentials", "n3", "--out", elsewhere)
	waiting := c.startNode("n3", "--data-dir", elsewhere)
	until(t, "the third place to say that it waits", func() bool {
		return strings.Contains(waiting.out.String(), "waiting for the lease of the node's last epoch to expire")
	})
	node.stop()
	c.awaitReady("n3", 2)
}

func portInUse(t *testing.T, c *cluster) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.MkdirAll(filepath.Join(dir, "apiserver"), 0o700); err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	if err := os.WriteFile(filepath.Join(dir, "apiserver", "port"), []byte(port), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, code := c.run("up", "--data-dir", dir)
	if code != 1 || !strings.HasPrefix(errs, "ebb: apiserver ended: exit status 1 while waiting for the API server:\n") || !strings.Contains(errs, "listen on the port of the last start: ") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

func secretFiles(t *testing.T, c *cluster) {
	err := filepath.WalkDir(string(c.dir), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		secret := strings.HasSuffix(path, ".key") || strings.HasSuffix(path, "kubeconfig") || d.Name() == "token"
		if secret && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		if d.IsDir() && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s can be entered by others: %s", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	token, err := datadir.ReadToken(c.dir.Token())
	if err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(string(c.dir), "logs", "*"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("logs: %v, %v", logs, err)
	}
	for _, path := range logs {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), token) || strings.Contains(string(data), "PRIVATE KEY") {
			t.Errorf("%s holds a secret", path)
		}
	}
}
