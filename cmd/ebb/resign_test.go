package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/httpapi"
)

func TestACoordinatorThatDoesNotAnswerIsNamed(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.Close() // nothing listens there any more
	_, err = http.Get(s.URL)
	got := hinted(unanswered(err, u)).Error()
	const remedy = "; if its node is dead or frozen, another one takes over within the duration of a lease: `ebb status` shows which"
	if !strings.HasPrefix(got, "the coordinator at "+u.Host+" could not be asked: ") || !strings.HasSuffix(got, remedy) {
		t.Errorf("%q", got)
	}
	refusal := &httpapi.Error{Code: httpapi.CodeNoSuccessor, Message: "no other node can take over"}
	if got := unanswered(refusal, u); !errors.Is(got, refusal) {
		t.Errorf("its own answer became %q", got)
	}
}
