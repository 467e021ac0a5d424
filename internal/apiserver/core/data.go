package core

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxData is how many bytes a Secret or a ConfigMap may hold.
const maxData = corev1.MaxSecretSize

func secrets() kind {
	return kind{
		plural: "secrets", singular: "secret", namespaced: true,
		empty:    func() runtime.Object { return &corev1.Secret{} },
		list:     func() runtime.Object { return &corev1.SecretList{} },
		prepare:  func(next, _ runtime.Object) { defaultSecret(next.(*corev1.Secret)) },
		validate: validateSecret,
		fields:   func(o runtime.Object) fields.Set { return fields.Set{"type": string(o.(*corev1.Secret).Type)} },
		columns: columns{nameColumn(),
			{name: "Type", cell: func(o runtime.Object) any { return string(o.(*corev1.Secret).Type) }},
			{name: "Data", cell: func(o runtime.Object) any { return int64(len(o.(*corev1.Secret).Data)) }},
			ageColumn()},
	}
}

// defaultSecret merges the write-only stringData into data. It runs when a Secret is decoded from a request, so that the field
// managers are recorded for data.
func defaultSecret(s *corev1.Secret) {
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = map[string][]byte{}
	}
	for key, text := range s.StringData {
		s.Data[key] = []byte(text)
	}
	s.StringData = nil
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
}

func validateSecret(next, old runtime.Object) field.ErrorList {
	s := next.(*corev1.Secret)
	data := field.NewPath("data")
	errs := validateName(s.Name, s.GenerateName)
	size := 0
	for _, key := range slices.Sorted(maps.Keys(s.Data)) {
		errs = append(errs, validateKey(data, key)...)
		size += len(s.Data[key])
	}
	errs = append(errs, validateSize(data, size)...)
	errs = append(errs, validateSecretType(s)...)
	was, ok := old.(*corev1.Secret)
	if !ok {
		return errs
	}
	errs = append(errs, validation.ValidateImmutableField(s.Type, was.Type, field.NewPath("type"))...)
	if isSet(was.Immutable) {
		errs = append(errs, validateImmutable(s.Immutable, data, equality.Semantic.DeepEqual(s.Data, was.Data))...)
	}
	return errs
}

// needs are the required keys of each type of Secret.
var needs = map[corev1.SecretType][]string{
	corev1.SecretTypeTLS:              {corev1.TLSCertKey, corev1.TLSPrivateKeyKey},
	corev1.SecretTypeSSHAuth:          {corev1.SSHAuthPrivateKey},
	corev1.SecretTypeDockercfg:        {corev1.DockerConfigKey},
	corev1.SecretTypeDockerConfigJson: {corev1.DockerConfigJsonKey},
}

func validateSecretType(s *corev1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	for _, key := range needs[s.Type] {
		if _, ok := s.Data[key]; !ok {
			errs = append(errs, field.Required(data.Key(key), fmt.Sprintf("a Secret of type %s must have it", s.Type)))
		}
	}
	switch s.Type {
	case corev1.SecretTypeBasicAuth:
		if s.Data[corev1.BasicAuthUsernameKey] == nil && s.Data[corev1.BasicAuthPasswordKey] == nil {
			errs = append(errs, field.Required(data.Key(corev1.BasicAuthUsernameKey), "or password: a Secret of type "+string(s.Type)+" must have one of them"))
		}
	case corev1.SecretTypeDockercfg, corev1.SecretTypeDockerConfigJson:
		key := needs[s.Type][0]
		if text, ok := s.Data[key]; ok && !json.Valid(text) {
			errs = append(errs, field.Invalid(data.Key(key), "<secret contents redacted>", "is not JSON"))
		}
	}
	return errs
}

func configMaps() kind {
	return kind{
		plural: "configmaps", singular: "configmap", short: []string{"cm"}, namespaced: true,
		empty:    func() runtime.Object { return &corev1.ConfigMap{} },
		list:     func() runtime.Object { return &corev1.ConfigMapList{} },
		prepare:  func(runtime.Object, runtime.Object) {},
		validate: validateConfigMap,
		columns: columns{nameColumn(),
			{name: "Data", cell: func(o runtime.Object) any {
				return int64(len(o.(*corev1.ConfigMap).Data) + len(o.(*corev1.ConfigMap).BinaryData))
			}},
			ageColumn()},
	}
}

func validateConfigMap(next, old runtime.Object) field.ErrorList {
	m := next.(*corev1.ConfigMap)
	data, binary := field.NewPath("data"), field.NewPath("binaryData")
	errs := validateName(m.Name, m.GenerateName)
	size := 0
	for _, key := range slices.Sorted(maps.Keys(m.Data)) {
		errs = append(errs, validateKey(data, key)...)
		if _, twice := m.BinaryData[key]; twice {
			errs = append(errs, field.Invalid(data.Key(key), key, "must not be in binaryData as well"))
		}
		size += len(m.Data[key])
	}
	for _, key := range slices.Sorted(maps.Keys(m.BinaryData)) {
		errs = append(errs, validateKey(binary, key)...)
		size += len(m.BinaryData[key])
	}
	errs = append(errs, validateSize(data, size)...)
	if was, ok := old.(*corev1.ConfigMap); ok && isSet(was.Immutable) {
		same := equality.Semantic.DeepEqual(m.Data, was.Data) && equality.Semantic.DeepEqual(m.BinaryData, was.BinaryData)
		errs = append(errs, validateImmutable(m.Immutable, data, same)...)
	}
	return errs
}

// validateName checks a name; the registry checks only that it can be part of a path.
func validateName(name, generate string) field.ErrorList {
	var errs field.ErrorList
	if generate != "" && name == "" {
		return errs
	}
	for _, message := range validation.NameIsDNSSubdomain(name, false) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), name, message))
	}
	return errs
}

func validateKey(at *field.Path, key string) field.ErrorList {
	var errs field.ErrorList
	for _, message := range utilvalidation.IsConfigMapKey(key) {
		errs = append(errs, field.Invalid(at.Key(key), key, message))
	}
	return errs
}

func validateSize(at *field.Path, size int) field.ErrorList {
	if size > maxData {
		return field.ErrorList{field.TooLong(at, "", maxData)}
	}
	return nil
}

// validateImmutable: an immutable object stays immutable, and its data do not change.
func validateImmutable(still *bool, data *field.Path, same bool) field.ErrorList {
	var errs field.ErrorList
	if !isSet(still) {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), "field is immutable when `immutable` is set"))
	}
	if !same {
		errs = append(errs, field.Forbidden(data, "field is immutable when `immutable` is set"))
	}
	return errs
}

func isSet(b *bool) bool { return b != nil && *b }
