package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// The times in objects are those of the cluster's machines: a wrong clock on the machine of a person must not make a coordinator look dead, or a
// dead one alive.
func TestTheTimeIsThatOfTheAPIServer(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 15 * time.Second} {
		t.Run(ahead.String(), func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, `{"apiVersion":"ebb.dev/v1alpha1","kind":"NodeList","metadata":{},"items":[]}`)
			}))
			defer server.Close()
			path := filepath.Join(t.TempDir(), "kubeconfig")
			text := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: " + server.URL + "}}]\n" +
				"users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c := cluster{kubeconfig: path}
			if off := time.Until(c.now()).Abs(); off > time.Minute {
				t.Errorf("before the first answer it is off by %s", off)
			}
			cl, err := c.client()
			if err != nil {
				t.Fatal(err)
			}
			if err := cl.List(t.Context(), &v1alpha1.NodeList{}); err != nil {
				t.Fatal(err)
			}
			if got := time.Until(c.now()); (got - ahead).Abs() > 5*time.Second {
				t.Errorf("the API server is ahead by %s, found %s", ahead, got)
			}
		})
	}
}

func TestAServerThatCannotBeReachedIsAHint(t *testing.T) {
	server := httptest.NewServer(nil)
	address := server.Listener.Addr().String()
	server.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(request)
	if err == nil {
		t.Fatalf("a server that is closed answers %s", resp.Status)
	}
	want := ": nothing answers there: check that it runs, and that --kubeconfig, KUBECONFIG or EBB_DATA_DIR names the right cluster"
	if got := hinted(fmt.Errorf("nodes: %w", err)).Error(); got != "nodes: "+err.Error()+want {
		t.Errorf("it says %s", got)
	}
	if got := hinted(os.ErrNotExist).Error(); got != os.ErrNotExist.Error() {
		t.Errorf("another error became %s", got)
	}
}

func TestAServerThatDoesNotAnswerIsAHint(t *testing.T) {
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	defer server.Close()
	defer close(over)
	_, err := (&http.Client{Timeout: 50 * time.Millisecond}).Get(server.URL)
	if err == nil {
		t.Fatal("it answered")
	}
	want := ": the server did not answer in time: check whether its process is frozen or its machine overloaded, and try again"
	if got := hinted(fmt.Errorf("nodes: %w", err)).Error(); got != "nodes: "+err.Error()+want {
		t.Errorf("it says %s", got)
	}
}
