package httpapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Client is a client of a node's HTTP API.
type Client struct {
	http   *http.Client
	stream *http.Client // for answers without an end
	token  string
}

// NewClient returns a client that trusts the given CA and sends a bearer token.
func NewClient(caPEM []byte, token string) (*Client, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(caPEM) {
		return nil, errors.New("the CA file contains no PEM certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	stream := transport.Clone()
	stream.ResponseHeaderTimeout = requestTimeout
	return &Client{
		http: &http.Client{Transport: transport, Timeout: 2 * requestTimeout}, stream: &http.Client{Transport: stream}, token: token,
	}, nil
}

// Do sends a request without a body and decodes the answer into out. An answer that is not a success is an *Error.
func (c *Client) Do(ctx context.Context, method string, base *url.URL, path string, out any) error {
	resp, err := c.send(ctx, c.http, method, base.JoinPath(path))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return err
	}
	if resp.StatusCode < 300 {
		return json.Unmarshal(body, out)
	}
	return problemOf(resp, body)
}

// Stream sends a request and returns the body of the answer, to be read as it arrives until ctx ends. The caller closes it.
func (c *Client) Stream(ctx context.Context, base *url.URL, path string, query url.Values) (io.ReadCloser, error) {
	u := base.JoinPath(path)
	u.RawQuery = query.Encode()
	resp, err := c.send(ctx, c.stream, http.MethodGet, u)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, err
	}
	return nil, problemOf(resp, body)
}

func (c *Client) send(ctx context.Context, with *http.Client, method string, u *url.URL) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	return with.Do(req)
}

// problemOf returns the error in an answer that is not a success.
func problemOf(resp *http.Response, body []byte) error {
	problem := &Error{}
	if json.Unmarshal(body, problem) != nil || problem.Message == "" {
		return fmt.Errorf("%s %s: %s", resp.Request.Method, resp.Request.URL, resp.Status)
	}
	return problem
}

// CodeOf returns the code of an *Error, or nothing.
func CodeOf(err error) string {
	var problem *Error
	if errors.As(err, &problem) {
		return problem.Code
	}
	return ""
}
