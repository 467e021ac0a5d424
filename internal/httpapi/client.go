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

// Client asks a node's HTTP API.
type Client struct {
	http  *http.Client
	token string
}

// NewClient trusts the given authority and bears a token.
func NewClient(caPEM []byte, token string) (*Client, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(caPEM) {
		return nil, errors.New("no certificate authority to trust")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	return &Client{http: &http.Client{Transport: transport, Timeout: 2 * requestTimeout}, token: token}, nil
}

// Do sends a request without a body and decodes the answer into out. An answer that is not a success is an *Error.
func (c *Client) Do(ctx context.Context, method string, base *url.URL, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, base.JoinPath(path).String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := c.http.Do(req)
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
	problem := &Error{}
	if json.Unmarshal(body, problem) != nil || problem.Message == "" {
		return fmt.Errorf("%s %s: %s", method, req.URL, resp.Status)
	}
	return problem
}

// CodeOf is the code of an answer that was not a success, or nothing.
func CodeOf(err error) string {
	var problem *Error
	if errors.As(err, &problem) {
		return problem.Code
	}
	return ""
}
