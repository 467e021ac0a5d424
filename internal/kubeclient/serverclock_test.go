package kubeclient

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever the coordinator's clock says and however long requests take: the server's clock is never found to be later than it is, and after
// an answer it is known to about a second.
func TestTheServersClockIsNeverAhead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		began := time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)
		skew := time.Duration(rapid.Int64Range(-48*3600, 48*3600).Draw(t, "skew")) * time.Second
		elapsed := time.Duration(rapid.Int64Range(0, 999).Draw(t, "fraction")) * time.Millisecond
		server := func() time.Time { return began.Add(elapsed) }
		c := &ServerClock{now: func() time.Time { return server().Add(skew) }}
		if !c.Now().IsZero() {
			t.Fatal("it is known before anything was answered")
		}
		slowest := time.Duration(0)
		pass := func(what string) time.Duration {
			d := time.Duration(rapid.Int64Range(0, 3000).Draw(t, what)) * time.Millisecond
			elapsed += d
			return d
		}
		for range rapid.IntRange(1, 12).Draw(t, "answers") {
			sent := c.now()
			there := pass("there")
			date := server().Truncate(time.Second)
			back := pass("back")
			c.See(date, sent)
			slowest = max(slowest, there+back)
			pass("rest")
			if got := c.Now(); got.After(server()) || got.Before(server().Add(-slowest-time.Second)) {
				t.Fatalf("it is %s, and was found to be %s", server(), got)
			}
		}
	})
}

func TestAServersClockThatWasSetBackIsFollowed(t *testing.T) {
	at := time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)
	c := &ServerClock{now: func() time.Time { return at }}
	c.See(at.Add(time.Hour), at)
	c.See(at, at)
	if got := c.Now(); !got.Equal(at) {
		t.Errorf("it is %s", got)
	}
}

func TestAnswersSetTheClock(t *testing.T) {
	ahead := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", ahead.Format(http.TimeFormat))
	}))
	defer server.Close()
	c := NewServerClock()
	answer, err := (&http.Client{Transport: c.Watch(http.DefaultTransport)}).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if got := c.Now(); got.Before(ahead) || got.After(ahead.Add(time.Minute)) {
		t.Errorf("it is %s", got)
	}
}
