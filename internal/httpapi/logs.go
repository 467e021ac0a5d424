package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ebb-dev/ebb/internal/deployment"
)

// CodeLogNotFound: the node has no log of the program.
const CodeLogNotFound = "ErrLogNotFound"

// readerPatience is how long a reader of a log may stop reading, for example in a pager.
const readerPatience = 10 * time.Minute

// logRequest selects a log and a part of it.
type logRequest struct {
	key    types.NamespacedName
	lines  int
	follow bool
}

// parseLogRequest refuses invalid object names, because names become paths.
func parseLogRequest(namespace, name string, query url.Values) (logRequest, error) {
	r := logRequest{key: types.NamespacedName{Namespace: namespace, Name: name}, lines: deployment.AllLines}
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return r, fmt.Errorf("namespace %q: %s", namespace, strings.Join(problems, "; "))
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return r, fmt.Errorf("name %q: %s", name, strings.Join(problems, "; "))
	}
	var err error
	if query.Has("tail") {
		if r.lines, err = strconv.Atoi(query.Get("tail")); err != nil || r.lines < 0 {
			return r, fmt.Errorf("tail %q: use a number of lines, 0 or more; without it the whole log is sent", query.Get("tail"))
		}
	}
	if query.Has("follow") {
		if r.follow, err = strconv.ParseBool(query.Get("follow")); err != nil {
			return r, fmt.Errorf("follow %q: use true or false", query.Get("follow"))
		}
	}
	return r, nil
}

// getLogs answers from this node's own disk: the output of a program is only on the nodes where it ran.
func (s *Server) getLogs(w http.ResponseWriter, r *http.Request) {
	request, err := parseLogRequest(r.PathValue("namespace"), r.PathValue("name"), r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, CodeBadRequest, err.Error())
		return
	}
	log, err := s.opts.Logs.Open(request.key, request.lines)
	switch {
	case errors.Is(err, deployment.ErrNoLog):
		writeError(w, http.StatusNotFound, CodeLogNotFound, fmt.Sprintf(
			"node %s has no log of %s: `ebb status deployments` shows where it runs", s.opts.Node, request.key))
		return
	case err != nil:
		writeError(w, http.StatusInternalServerError, CodeInternal, "internal server error: "+err.Error())
		return
	}
	defer log.Close()
	s.stream(w, r, log, request.follow)
}

// stream sends a log.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, log *deployment.Log, follow bool) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	out, err := newStreamWriter(w)
	switch {
	case err != nil || r.Method == http.MethodHead:
	case follow:
		err = log.Follow(ctx, out)
	default:
		err = log.Copy(out)
	}
	if err != nil {
		if ctx.Err() == nil {
			s.opts.Log.Warn("could not send a log to its end", "path", r.URL.Path, "error", err)
		}
		panic(http.ErrAbortHandler) // otherwise the client would take a part for the whole log
	}
}

// streamWriter sends every chunk at once. The server's timeouts are for short answers: here each chunk has its own timeout, and there
// is none between chunks.
type streamWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

// newStreamWriter sends the header.
func newStreamWriter(w http.ResponseWriter) (*streamWriter, error) {
	s := &streamWriter{w, http.NewResponseController(w)}
	return s, s.push(func() error { return nil })
}

// Write implements io.Writer.
func (s *streamWriter) Write(p []byte) (n int, err error) {
	err = s.push(func() error {
		n, err = s.ResponseWriter.Write(p)
		return err
	})
	return n, err
}

func (s *streamWriter) push(write func() error) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(readerPatience)); err != nil {
		return err
	}
	if err := write(); err != nil {
		return err
	}
	if err := s.control.Flush(); err != nil {
		return err
	}
	return s.control.SetWriteDeadline(time.Time{})
}
